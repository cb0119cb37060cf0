package io.syncline;

/** A backend that failed, or whose group is broken or closed. */
public final class DistBackendException extends DistException {
  private static final long serialVersionUID = 1L;

  DistBackendException(String message) {
    super(message);
  }
}
