package io.syncline;

/**
 * Where log lines go: see {@link Logging#setSink}. To hand them to SLF4J:
 *
 * <pre>{@code
 * org.slf4j.Logger slf4j = org.slf4j.LoggerFactory.getLogger("io.syncline");
 * Logging.setSink((level, message) ->
 * slf4j.atLevel(org.slf4j.event.Level.valueOf(level.name())).log(message)); }</pre>
 */
@FunctionalInterface
public interface Logger {
  /** How much a line matters; the names are SLF4J's. */
  enum Level {
    /** For who looks for a fault in Syncline itself. */
    DEBUG,
    /** What happens. */
    INFO,
    /** What may go wrong. */
    WARN,
    /** What has gone wrong. */
    ERROR
  }

  /**
   * Takes one line. Called from any thread, also from those of C++; must not block for long, nor
   * call Syncline. What it throws is dropped.
   *
   * @param level how much it matters
   * @param message the line, without time, level or line break
   */
  void log(Level level, String message);
}
