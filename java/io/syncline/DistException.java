package io.syncline;

import java.nio.charset.StandardCharsets;

/**
 * Something went wrong between processes. Messages say what, on which rank, how long it took and
 * what to do.
 *
 * <p>Arguments that a call does not accept are an {@link IllegalArgumentException} instead, what a
 * backend cannot do an {@link UnsupportedOperationException}, and what is done to a closed object
 * an {@link IllegalStateException}.
 */
public class DistException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  DistException(String message) {
    super(message);
  }

  /** The exception for an error of C++. Called by native code, with the numbers of java/jvm.cc. */
  static RuntimeException of(int kind, byte[] utf8) {
    final String message = Convert.text(utf8);
    return switch (kind) {
      case 0, 1 -> new IllegalArgumentException(message);
      case 2 -> new DistTimeoutException(message);
      case 3 -> new DistNetworkException(message);
      case 4 -> new DistStoreException(message);
      case 5 -> new DistBackendException(message);
      case 6 -> new DistMismatchException(message);
      case 7 -> new UnsupportedOperationException(message);
      case 9 -> new DistInterruptedException(message);
      default -> new DistException(message);
    };
  }

  /** The number of the error of C++ that fits an exception of code that native code called. */
  static int kindOf(Throwable exception) {
    if (exception instanceof DistTimeoutException) {
      return 2;
    } else if (exception instanceof DistNetworkException) {
      return 3;
    } else if (exception instanceof DistStoreException) {
      return 4;
    } else if (exception instanceof DistMismatchException) {
      return 6;
    } else if (exception instanceof UnsupportedOperationException) {
      return 7;
    }
    return 5;
  }

  /** What it says, with its type unless that is one of this package. */
  static byte[] messageOf(Throwable exception) {
    final boolean isOurs = exception instanceof DistException && exception.getMessage() != null;
    final String text = isOurs ? exception.getMessage() : String.valueOf(exception);
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
