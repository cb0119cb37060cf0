package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The jar alone, in a folder of its own and an empty environment, as a user has it. */
class JarTest {
  private static final String PROGRAM =
      """
      import io.syncline.*;

      public class Program {
        public static void main(String[] arguments) {
          try (World world = World.init("gloo")) {
            float[] values = {1, 2, 3};
            world.group().allReduce(values);
            System.out.println(world.size() + " " + values[2] + " " + Info.backends());
          }
        }
      }
      """;

  @TempDir Path folder;

  @Test
  void aProgramNeedsNothingButTheJar() throws Exception {
    copyJar();
    Files.writeString(folder.resolve("Program.java"), PROGRAM);
    run("javac", "-cp", "syncline.jar", "Program.java");
    final String output = run("java", "-Djava.io.tmpdir=tmp", "-cp", "syncline.jar:.", "Program");
    assertEquals("1 3.0 " + Info.backends(), output.strip());
    try (var left = Files.list(folder.resolve("tmp"))) {
      assertEquals(0, left.count(), "the native library's files are still there");
    }
  }

  @Test
  void aPlatformWithoutANativeLibraryIsNamed() throws Exception {
    copyJar();
    Files.writeString(folder.resolve("Program.java"), PROGRAM);
    run("javac", "-cp", "syncline.jar", "Program.java");
    final String output = runFailing("java", "-Dos.arch=pdp11", "-cp", "syncline.jar:.", "Program");
    assertTrue(output.contains("no native library of Syncline for linux-pdp11"), output);
    assertTrue(output.contains("syncline.library.path"), output);
  }

  private void copyJar() throws Exception {
    final var source = World.class.getProtectionDomain().getCodeSource().getLocation();
    Files.copy(Path.of(source.toURI()), folder.resolve("syncline.jar"));
    Files.createDirectory(folder.resolve("tmp"));
  }

  private String run(String... command) throws Exception {
    return run(0, command);
  }

  private String runFailing(String... command) throws Exception {
    return run(1, command);
  }

  private String run(int status, String... command) throws Exception {
    final Path out = Files.createTempFile(folder, "out", "");
    final List<String> words = new java.util.ArrayList<>(List.of(command));
    words.set(0, Path.of(System.getProperty("java.home"), "bin", command[0]).toString());
    final ProcessBuilder builder =
        new ProcessBuilder(words)
            .directory(folder.toFile())
            .redirectErrorStream(true)
            .redirectOutput(out.toFile());
    builder.environment().clear();
    final Process process = builder.start();
    try {
      assertTrue(process.waitFor(120, TimeUnit.SECONDS), "no end of " + words);
    } finally {
      process.destroyForcibly();
    }
    final String output = Files.readString(out);
    assertEquals(status, process.exitValue(), output);
    return output;
  }
}
