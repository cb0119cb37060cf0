package io.syncline;

/** A store that cannot do what it was asked, or not any more. */
public final class DistStoreException extends DistException {
  private static final long serialVersionUID = 1L;

  DistStoreException(String message) {
    super(message);
  }
}
