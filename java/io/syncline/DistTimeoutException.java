package io.syncline;

/**
 * A wait that was longer than its timeout; the message names the ranks or keys that were missing.
 */
public final class DistTimeoutException extends DistException {
  private static final long serialVersionUID = 1L;

  DistTimeoutException(String message) {
    super(message);
  }
}
