package io.syncline;

/** Ranks that called different operations, or the same with arguments that do not fit. */
public final class DistMismatchException extends DistException {
  private static final long serialVersionUID = 1L;

  DistMismatchException(String message) {
    super(message);
  }
}
