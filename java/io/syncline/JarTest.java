package io.syncline;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
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

  /** What most touches the border: arguments, results and errors of all kinds, many times over. */
  private static final String BORDER = """
      import io.syncline.*;
      import java.util.List;

      public class Program {
        public static void main(String[] arguments) throws Exception {
          World world = World.init("gloo");
          ProcessGroup group = world.group();
          for (int i = 0; i < 100; i++) {
            float[] values = new float[1000];
            group.allReduce(values);
            group.allReduceAsync(Tensor.of(new double[7])).thenRun(() -> group.barrier()).get();
            group.allGatherBytes(new byte[10]);
            try {
              group.broadcast(values, 5);
            } catch (IllegalArgumentException e) {
              System.out.println(e.getMessage().contains("root"));
            }
            Tensor tensor = Tensor.allocate(DType.FLOAT32, 2, 3);
            group.allReduceCoalesced(List.of(tensor, Tensor.allocate(DType.FLOAT32, 1)));
            group.split(new int[][] {{0}}).ranks();
            world.store().set("k" + i, new byte[1]);
            world.store().listKeys("");
          }
          for (int i = 0; i < 100; i++) {
            group.allReduceAsync(Tensor.of(new float[100_000])); // In flight at the end.
          }
        }
      }
      """;

  /** Its memory suffices for what it sends, but for no copies of that. */
  private static final String HUNGRY = """
      import io.syncline.*;

      public class Program {
        public static void main(String[] arguments) throws Exception {
          World world = World.init("gloo");
          byte[] value = new byte[500_000_000];
          String size = java.nio.file.Files.readString(java.nio.file.Path.of("/proc/self/statm"));
          long limit = Long.parseLong(size.split(" ")[0]) * 4096 + Long.parseLong(arguments[0]);
          new ProcessBuilder(
                  "/usr/bin/prlimit", "--pid", "" + ProcessHandle.current().pid(),
                  "--as=" + limit + ":")
              .inheritIO().start().waitFor();
          try {
            world.group().allGatherBytes(value);
          } catch (OutOfMemoryError e) {
            System.out.println(e.getMessage());
          }
          world.group().allReduce(new float[3]); // The group goes on.
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
  void aModuleMayRequireIt() throws Exception {
    copyJar();
    Files.createDirectories(folder.resolve("app/hello"));
    Files.writeString(
        folder.resolve("app/module-info.java"), "module app { requires io.syncline; }");
    Files.writeString(folder.resolve("app/hello/Program.java"), "package hello;\n" + PROGRAM);
    run("javac", "-Xlint:all", "-Werror", "-p", "syncline.jar", "-d", "classes",
        "app/module-info.java", "app/hello/Program.java");
    final String output =
        run("java", "-Djava.io.tmpdir=tmp", "-p", "syncline.jar:classes", "-m",
            "app/hello.Program");
    assertEquals("1 3.0 " + Info.backends(), output.strip());
  }

  @Test
  void itBringsItsLicensesAndItsPom() throws Exception {
    copyJar();
    try (var jar = new JarFile(folder.resolve("syncline.jar").toFile())) {
      final var names = jar.stream().map(JarEntry::getName).collect(Collectors.toSet());
      for (String name : List.of(
          "LICENSE", "THIRD_PARTY.md", "licenses/gloo/LICENSE", "licenses/com_google_absl/LICENSE",
          "licenses/libssl-dev/copyright", "maven/io.syncline/syncline/pom.xml")) {
        assertTrue(names.contains("META-INF/" + name), name + " is not among " + names);
      }
      final var pom = jar.getEntry("META-INF/maven/io.syncline/syncline/pom.xml");
      final String version = jar.getManifest().getMainAttributes().getValue("Implementation-Version");
      final String text = new String(jar.getInputStream(pom).readAllBytes(), UTF_8);
      assertTrue(text.contains("<version>" + version + "</version>"), text);
    }
  }

  @Test
  void theMavenRepositoryHasSourcesAndDocumentation() throws Exception {
    final Path repository = Path.of(System.getenv("TEST_SRCDIR"), "syncline/java/maven");
    final List<Path> jars;
    try (var files = Files.walk(repository)) {
      jars = files.filter(path -> path.toString().endsWith(".jar")).sorted().toList();
    }
    assertEquals(3, jars.size(), jars.toString()); // -javadoc sorts before -sources before none.
    try (var documentation = new JarFile(jars.get(0).toFile());
        var sources = new JarFile(jars.get(1).toFile())) {
      assertNotNull(documentation.getEntry("io.syncline/io/syncline/ProcessGroup.html"));
      assertNotNull(sources.getEntry("io/syncline/ProcessGroup.java"));
      assertNotNull(sources.getEntry("io/syncline/Tensor.java"));
      assertNotNull(sources.getEntry("module-info.java"));
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

  @Test
  void theJvmsChecksOfNativeCodeFindNothing() throws Exception {
    copyJar();
    Files.writeString(folder.resolve("Program.java"), BORDER);
    run("javac", "-cp", "syncline.jar", "Program.java");
    final String output = run("java", "-Xcheck:jni", "-cp", "syncline.jar:.", "Program");
    assertEquals("true\n".repeat(100), output);
  }

  @Test
  void wantOfMemoryOutsideTheHeapIsAnErrorOfTheCall() throws Exception {
    assumeTrue(Files.exists(Path.of("/usr/bin/prlimit")), "no prlimit to take memory away with");
    copyJar();
    Files.writeString(folder.resolve("Program.java"), HUNGRY);
    run("javac", "-cp", "syncline.jar", "Program.java");
    final String output = run("java", "-cp", "syncline.jar:.", "Program", "200000000");
    assertEquals("no memory outside the heap for a call of Syncline", output.strip());
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
