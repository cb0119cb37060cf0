package io.syncline;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;

/**
 * The C++ behind this package. It comes in the jar, and is loaded when it is first needed: nothing
 * has to be set. The system property {@code syncline.library.path} names a folder from which to
 * load it instead.
 */
public final class NativeLibrary {
  private static final String FOLDER_PROPERTY = "syncline.library.path";
  private static final String FILE = System.mapLibraryName("syncline_jni");
  private static boolean loaded;
  private static boolean loading; // By this thread, as `load` is synchronized.

  private NativeLibrary() {}

  /**
   * Loads it, unless it has been loaded. Classes of this package do so themselves; a program may do
   * it at its start, to fail early.
   *
   * @throws UnsatisfiedLinkError if there is none for this platform, or the system cannot load it
   */
  public static synchronized void load() {
    // While it is loaded it looks up classes whose initializers call this method again. A second
    // copy of the library would have a log, a table of ranks and threads of its own.
    if (loaded || loading) {
      return;
    }
    loading = true;
    try {
      final String folder = System.getProperty(FOLDER_PROPERTY);
      if (folder != null) {
        System.load(Path.of(folder, FILE).toAbsolutePath().toString());
      } else {
        loadFromJar();
      }
      Logging.attach();
      loaded = true;
    } finally {
      loading = false;
    }
  }

  private static void loadFromJar() {
    final String resources = "native/" + platform() + "/";
    try {
      final List<String> names = namesIn(resources);
      // Three levels down, since the library looks for others above its own folder: all of them are
      // in a folder that nobody else can write.
      final Path top = Files.createTempDirectory("syncline-").toAbsolutePath();
      final Path folder = Files.createDirectories(top.resolve("a/b/c"));
      try {
        for (String name : names) {
          try (InputStream in = NativeLibrary.class.getResourceAsStream(resources + name)) {
            Files.copy(in, folder.resolve(name));
          }
        }
        System.load(folder.resolve(FILE).toString());
      } catch (UnsatisfiedLinkError e) {
        throw linkError(
            "the native library of Syncline cannot be loaded from " + folder + ": "
                + e.getMessage() + ". If programs may not run from there, name another folder with"
                + " -Djava.io.tmpdir, or the library's own with -D" + FOLDER_PROPERTY, e);
      } finally {
        delete(names, folder, top); // What is loaded stays so.
      }
    } catch (IOException e) {
      throw linkError("the native library of Syncline cannot be unpacked: " + e, e);
    }
  }

  /** The files of the jar for this platform. */
  private static List<String> namesIn(String resources) throws IOException {
    try (InputStream in = NativeLibrary.class.getResourceAsStream(resources + "files")) {
      if (in == null) {
        throw linkError(
            "this jar has no native library of Syncline for " + platform() + "; with one built"
                + " there, set -D" + FOLDER_PROPERTY + " to its folder", null);
      }
      return new String(in.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
    }
  }

  private static void delete(List<String> names, Path folder, Path top) throws IOException {
    for (String name : names) {
      Files.deleteIfExists(folder.resolve(name));
    }
    for (Path path = folder; path.startsWith(top); path = path.getParent()) {
      Files.deleteIfExists(path);
    }
  }

  /** Such as linux-x86_64. */
  private static String platform() {
    final String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    final String machine = System.getProperty("os.arch");
    return system.replace("mac os x", "macos") + "-" + machine.replace("amd64", "x86_64");
  }

  private static UnsatisfiedLinkError linkError(String message, Throwable cause) {
    final UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
    error.initCause(cause);
    return error;
  }
}
