package io.syncline;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * A bounded first-in, first-out queue of tensors with any number of producers and consumers,
 * threads of any processes of one host, in Java, Python and C++.
 *
 * <pre>{@code
 * try (TensorQueue batches = TensorQueue.open(handle)) { // batches.handle in Python
 *   Optional<TensorQueue.Message> next;
 *   while ((next = batches.get(Duration.ofMinutes(1))).isPresent()) {
 *     try (TensorQueue.Message batch = next.get()) {
 *       train(batch.tensors());
 *     }
 *   }
 * }
 * }</pre>
 *
 * <p>A message is some tensors and a short byte string; its bytes are copied into memory that the
 * processes share, and out of it. Thread-safe. The memory is freed with the last process that has
 * the queue.
 *
 * <p>A process may be killed at any time. Each message is delivered at most once, whole, and those
 * of one producer's thread in order. If a producer is killed while it copies a message, one get
 * throws a {@link DistNetworkException} that names its pid, and the next one goes on; a message
 * whose consumer is killed while it copies is lost.
 */
public final class TensorQueue extends NativeHandle {
  static {
    NativeLibrary.load();
  }

  /**
   * What was put.
   *
   * @param tensors in memory of their own
   * @param note the byte string; of a message from Python it begins with 0xFF, unless that was a
   *     TensorMessage
   */
  public record Message(List<Tensor> tensors, byte[] note) implements AutoCloseable {
    /** Closes the tensors. */
    @Override
    public void close() {
      tensors.forEach(Tensor::close);
    }
  }

  private TensorQueue(long pointer) {
    super(pointer, TensorQueue::free);
  }

  /**
   * A new queue, which holds as many messages as fit, up to one for each KiB.
   *
   * @param capacity bytes of messages that it holds at most; all of this memory is taken at once
   * @return the queue
   * @throws IllegalArgumentException if the capacity is impossible
   * @throws DistBackendException with sizes, if there is not so much memory
   */
  public static TensorQueue create(long capacity) {
    return create(capacity, 0);
  }

  /**
   * A new queue.
   *
   * @param capacity bytes of messages that it holds at most; all of this memory is taken at once
   * @param maxMessages messages that it holds at most; 0: as many as fit, up to one for each KiB
   * @return the queue
   * @throws IllegalArgumentException if one of these is impossible
   * @throws DistBackendException with sizes, if there is not so much memory
   */
  public static TensorQueue create(long capacity, long maxMessages) {
    return new TensorQueue(nativeCreate(capacity, maxMessages));
  }

  /**
   * The queue of a handle that another process of this user and host has made, in any language.
   *
   * @param handle what {@link #handle} has returned there
   * @return the queue
   * @throws IllegalArgumentException if it is no handle
   * @throws DistBackendException which names the pid of the process that made it, if that has ended
   *     or has freed the queue, or is of another host, pid namespace (container) or user
   */
  public static TensorQueue open(String handle) {
    return new TensorQueue(nativeOpen(Convert.utf8(handle, "handle")));
  }

  /**
   * A short text by which others open the queue, as long as this process runs and has it.
   *
   * @return the handle
   */
  public String handle() {
    try (Scope scope = new Scope()) {
      return Convert.text(nativeHandle(scope.use(this, "this")));
    }
  }

  /**
   * Copies a message into the queue; waits while there is no room for it. Puts that wait are served
   * before later ones.
   *
   * @param tensors what is copied
   * @param note a short byte string
   * @param timeout how long to wait for room at most
   * @throws IllegalArgumentException with both sizes, if the message is larger than the capacity
   * @throws DistTimeoutException if there is no room in time
   * @throws DistBackendException once the queue is shut down
   */
  public void put(List<Tensor> tensors, byte[] note, Duration timeout) {
    put(tensors, note, Math.max(Convert.nanos(timeout, "timeout"), 1));
  }

  /**
   * As {@link #put(List, byte[], Duration)}, with an empty note.
   *
   * @param tensors what is copied
   * @param timeout how long to wait for room at most
   */
  public void put(List<Tensor> tensors, Duration timeout) {
    put(tensors, new byte[0], timeout);
  }

  /**
   * The same without a wait.
   *
   * @param tensors what is copied
   * @param note a short byte string
   * @return whether there was room
   * @throws IllegalArgumentException with both sizes, if the message is larger than the capacity
   * @throws DistBackendException once the queue is shut down
   */
  public boolean offer(List<Tensor> tensors, byte[] note) {
    return put(tensors, note, 0);
  }

  /** Whether there was room; waits for it for a time above 0, after which there is an exception. */
  private boolean put(List<Tensor> tensors, byte[] note, long nanos) {
    if (Threads.isVirtual()) {
      return Threads.call(() -> put(tensors, note, nanos));
    }
    final byte[] ownNote = Convert.notNull(note, "note").clone();
    try (Scope scope = new Scope()) {
      return nativePut(
          scope.use(this, "this"), scope.read(tensors, "tensors"), ownNote, nanos);
    }
  }

  /**
   * Takes the oldest message; waits for it.
   *
   * @param timeout how long to wait at most
   * @return the message; none once the queue is shut down and empty
   * @throws DistTimeoutException if none comes in time
   * @throws DistNetworkException if the producer of the oldest message was killed while it put it;
   *     the message is lost, and the next call goes on
   */
  public Optional<Message> get(Duration timeout) {
    return get(Math.max(Convert.nanos(timeout, "timeout"), 1));
  }

  /**
   * The same without a wait.
   *
   * @return the message; none if there is no message, or the oldest one is still being put
   * @throws DistNetworkException as for {@link #get}
   */
  public Optional<Message> poll() {
    return get(0);
  }

  private Optional<Message> get(long nanos) {
    if (Threads.isVirtual()) {
      return Threads.call(() -> get(nanos));
    }
    try (Scope scope = new Scope()) {
      final byte[][] note = new byte[1][];
      final Tensor[] tensors = nativeGet(scope.use(this, "this"), nanos, note);
      return tensors == null
          ? Optional.empty()
          : Optional.of(new Message(Arrays.asList(tensors), note[0]));
    }
  }

  /**
   * Ends the queue for all processes: puts fail from now on, those that wait included; consumers
   * get what is in the queue, then nothing. Unlike {@link #close}, which only lets go of it here.
   */
  public void shutdown() {
    if (Threads.isVirtual()) {
      Threads.run(this::shutdown);
      return;
    }
    try (Scope scope = new Scope()) {
      nativeShutdown(scope.use(this, "this"));
    }
  }

  /**
   * Whether any process has ended the queue.
   *
   * @return true from then on
   */
  public boolean isShutdown() {
    return stats(4) != 0;
  }

  /**
   * How many messages there are, those that are being put included. It may be out of date.
   *
   * @return 0 or more
   */
  public long size() {
    return stats(0);
  }

  /**
   * How many bytes of the capacity are taken. It may be out of date.
   *
   * @return 0 or more
   */
  public long bytes() {
    return stats(1);
  }

  /**
   * How many messages were lost since their producer was killed while it put them.
   *
   * @return 0 or more
   */
  public long lostPuts() {
    return stats(2);
  }

  /**
   * How many messages were lost since their consumer was killed while it received them.
   *
   * @return 0 or more
   */
  public long lostGets() {
    return stats(3);
  }

  /**
   * Bytes that the queue holds at most.
   *
   * @return as given when it was made, rounded up to a page
   */
  public long capacity() {
    return stats(5);
  }

  private long stats(int index) {
    try (Scope scope = new Scope()) {
      return nativeStats(scope.use(this, "this"))[index];
    }
  }

  private static native long nativeCreate(long capacity, long maxMessages);

  private static native long nativeOpen(byte[] handle);

  private static native byte[] nativeHandle(long self);

  private static native boolean nativePut(long self, long[] tensors, byte[] note, long nanos);

  /** Null for none, unless that is a timeout; {@code note} has room for one. */
  private static native Tensor[] nativeGet(long self, long nanos, byte[][] note);

  private static native void nativeShutdown(long self);

  /** Messages, bytes, lost puts, lost gets, whether it is shut down, capacity. */
  private static native long[] nativeStats(long self);

  private static native void free(long pointer);
}
