package io.syncline;

/** A connection that could not be made or was lost. */
public final class DistNetworkException extends DistException {
  private static final long serialVersionUID = 1L;

  DistNetworkException(String message) {
    super(message);
  }
}
