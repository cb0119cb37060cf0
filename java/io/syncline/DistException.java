package io.syncline;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.Collectors;

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

  private int[] ranks = {};
  private String operation; // Null if not known; then sequence means nothing.
  private long sequence;

  DistException(String message) {
    super(message);
  }

  /**
   * The ranks at fault, as far as they are known: those that came late, died, left, or disagree.
   *
   * @return them in ascending order, in the numbers of the group that the message names
   */
  public List<Integer> ranks() {
    return Arrays.stream(ranks).boxed().collect(Collectors.toUnmodifiableList());
  }

  /**
   * The operation that failed. Of a mismatch it is this rank's, where that is among those that
   * disagree; of a call that is refused because its group is broken, that which broke the group.
   *
   * @return its name, as in messages: {@code "all_reduce"}; empty where none of a group
   *     failed, and for one that had not begun
   */
  public Optional<String> operation() {
    return Optional.ofNullable(operation);
  }

  /**
   * The number of the {@link #operation} in its group, which for send and recv is counted between
   * the two ranks.
   *
   * @return the number; empty where the operation is
   */
  public OptionalLong sequence() {
    return operation == null ? OptionalLong.empty() : OptionalLong.of(sequence);
  }

  /**
   * The exception for an error of C++, with its origin. Called by native code.
   *
   * @param operation in UTF-8; null if it is not known
   */
  static RuntimeException of(
      int kind, byte[] utf8, int[] ranks, byte[] operation, long sequence) {
    final RuntimeException exception = of(kind, utf8);
    if (exception instanceof DistException) {
      final DistException ours = (DistException) exception;
      ours.ranks = ranks == null ? new int[0] : ranks;
      ours.operation = operation == null ? null : Convert.text(operation);
      ours.sequence = sequence;
    }
    return exception;
  }

  /** The exception for an error of C++, with the numbers of java/jvm.cc. */
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

  /** The ranks at fault; none if it is not of this package. */
  static int[] ranksOf(Throwable exception) {
    return exception instanceof DistException ? ((DistException) exception).ranks : new int[0];
  }
}
