package io.syncline;

/**
 * Where the log lines of Syncline go, those of C++ included: to {@link System.Logger} {@code
 * "io.syncline"}, which is java.util.logging unless the program brings a bridge to another, or to a
 * sink of the program's own.
 */
public final class Logging {
  private static final Logger.Level[] LEVELS = Logger.Level.values();
  private static volatile Logger sink; // Null for the default.

  private Logging() {}

  /**
   * Sends all lines from now on elsewhere. What C++ says at all is up to the environment variable
   * SYNCLINE_LOG_LEVEL: debug, info, warning (the default) or error.
   *
   * @param logger the sink; null for the default
   */
  public static void setSink(Logger logger) {
    NativeLibrary.load();
    sink = logger;
  }

  /** From now on C++ calls {@link #fromNative}. For who has loaded the library. */
  static native void attach();

  /** Called by native code on any of its threads. */
  private static void fromNative(int level, byte[] utf8) {
    final Logger logger = sink;
    try {
      (logger == null ? Default.SYSTEM : logger).log(LEVELS[level], Convert.text(utf8));
    } catch (RuntimeException e) {
      // Logging must not be the end of what it tells about.
    }
  }

  /** Found when first used, so that programs can set up their logging first. */
  private static final class Default {
    static final Logger SYSTEM = systemLogger();

    private static Logger systemLogger() {
      final System.Logger system = System.getLogger("io.syncline");
      final System.Logger.Level[] levels = {
        System.Logger.Level.DEBUG,
        System.Logger.Level.INFO,
        System.Logger.Level.WARNING,
        System.Logger.Level.ERROR,
      };
      return (level, message) -> system.log(levels[level.ordinal()], message);
    }
  }
}
