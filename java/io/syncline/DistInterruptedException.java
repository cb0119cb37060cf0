package io.syncline;

/**
 * A wait that ended because its thread was interrupted, which the interrupt flag still says. What
 * was waited for goes on.
 */
public final class DistInterruptedException extends DistException {
  private static final long serialVersionUID = 1L;

  DistInterruptedException(String message) {
    super(message);
  }
}
