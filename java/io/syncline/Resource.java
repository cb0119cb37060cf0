package io.syncline;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.function.LongConsumer;

/**
 * Something outside the heap that calls use, and that ends once its owner has closed it and the
 * last call has left it. Knows nothing of the object that owns it, so that a Cleaner can close it.
 */
final class Resource implements Runnable {
  private static final int CLOSED = Integer.MIN_VALUE; // The sign of `users`.
  private static final VarHandle USERS;

  static {
    try {
      USERS = MethodHandles.lookup().findVarHandle(Resource.class, "users", int.class);
    } catch (ReflectiveOperationException e) {
      throw new ExceptionInInitializerError(e);
    }
  }

  private final String name;
  private final long pointer;
  private final LongConsumer free;

  @SuppressWarnings("FieldMayBeFinal") // Written through USERS.
  private volatile int users = 1; // The owner, and calls in progress.

  /**
   * Takes charge of what {@code pointer} stands for.
   *
   * @param name what it is, for messages
   * @param free called with the pointer at the end; what it refers to lives as long as this
   */
  Resource(String name, long pointer, LongConsumer free) {
    this.name = name;
    this.pointer = pointer;
    this.free = free;
  }

  /** Keeps it alive until {@link #release}; IllegalStateException if it has been closed. */
  long acquire() {
    while (true) {
      final int now = users;
      if (now < 0) {
        throw new IllegalStateException("this " + name + " has been closed");
      }
      if (USERS.compareAndSet(this, now, now + 1)) {
        return pointer;
      }
    }
  }

  void release() {
    if ((int) USERS.getAndAdd(this, -1) - 1 == CLOSED) {
      free.accept(pointer);
    }
  }

  /** Ends new uses; true for the first caller, who must call {@link #release} in the end. */
  boolean beginClose() {
    while (true) {
      final int now = users;
      if (now < 0) {
        return false;
      }
      if (USERS.compareAndSet(this, now, now | CLOSED)) {
        return true;
      }
    }
  }

  boolean isClosed() {
    return users < 0;
  }

  /** The pointer, for who holds it. */
  long pointer() {
    return pointer;
  }

  /** Closes it, if nobody has. */
  @Override
  public void run() {
    if (beginClose()) {
      release();
    }
  }
}
