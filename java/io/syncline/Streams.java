package io.syncline;

/**
 * The streams of CUDA devices behind which this thread's operations on their tensors are enqueued.
 *
 * <pre>{@code
 * try (Streams ignored = Streams.current(stream, 0)) { // A cudaStream_t of the program.
 *   group.allReduce(gradients); // Behind what is on the stream; returns once it is enqueued.
 * } // What comes on the stream now sees the result.
 * }</pre>
 *
 * <p>Without one, that is the default stream. To be closed by the thread that made it, which is no
 * virtual one, in the reverse order: as try-with-resources does. The stream is the caller's, and
 * must live until the work on it has ended.
 */
public final class Streams implements AutoCloseable {
  private static final ThreadLocal<Streams> INNERMOST = new ThreadLocal<>();

  private final Thread owner = Thread.currentThread();
  private final Streams outer;
  private long scope; // 0 once it is closed.

  private Streams(long scope) {
    this.scope = scope;
    this.outer = INNERMOST.get();
    INNERMOST.set(this);
  }

  /**
   * Makes a stream the current one of its device on this thread, until it is closed.
   *
   * @param stream a cudaStream_t, which is a CUstream; 0 is the default stream
   * @param device the number of the device
   * @return what ends it
   * @throws IllegalArgumentException if the device is negative
   * @throws IllegalStateException on a virtual thread, which has no native thread of its own
   */
  public static Streams current(long stream, int device) {
    if (device < 0) {
      throw new IllegalArgumentException("device must be 0 or more, not " + device);
    }
    if (Threads.isVirtual()) {
      throw new IllegalStateException("a virtual thread has no current stream: use another one");
    }
    return new Streams(NativeMemory.enterStream(stream, device));
  }

  /**
   * As {@link #current(long, int)}, of device 0.
   *
   * @param stream a cudaStream_t; 0 is the default stream
   * @return what ends it
   */
  public static Streams current(long stream) {
    return current(stream, 0);
  }

  /**
   * Makes the stream current again that was before. Does nothing the second time.
   *
   * @throws IllegalStateException on another thread, or before those that were made inside of it
   */
  @Override
  public void close() {
    if (scope == 0) {
      return;
    }
    if (Thread.currentThread() != owner || INNERMOST.get() != this) {
      throw new IllegalStateException(
          "streams are closed by the thread that made them, the innermost first");
    }
    NativeMemory.leaveStream(scope);
    scope = 0;
    if (outer == null) {
      INNERMOST.remove();
    } else {
      INNERMOST.set(outer);
    }
  }
}
