package io.syncline;

import java.lang.ref.Cleaner;
import java.util.function.LongConsumer;

/**
 * A C++ object, shared with whatever else holds it. Thread-safe: a close during a call takes effect
 * once the call is over. What is never closed is released when the garbage collector finds it.
 */
abstract class NativeHandle implements AutoCloseable {
  final Resource resource;
  private final Cleaner.Cleanable cleanable;

  /** Takes charge of the std::shared_ptr at {@code pointer}, which {@code free} deletes. */
  NativeHandle(long pointer, LongConsumer free) {
    resource = new Resource(getClass().getSimpleName(), pointer, free);
    cleanable = Cleaners.register(this, resource);
  }

  /**
   * Lets go of the object: later calls through this handle are an {@link IllegalStateException}.
   * The object lives on where others use it. Does nothing the second time.
   */
  @Override
  public void close() {
    cleanable.clean();
  }

  /** As close, after a last call. Nobody but the first to close makes it. */
  final void closeAfter(LongConsumer last) {
    if (resource.beginClose()) {
      try {
        Threads.run(() -> last.accept(resource.pointer()));
      } finally {
        resource.release();
      }
    }
    cleanable.clean();
  }
}
