package io.syncline;

/**
 * A call that ended because its thread was interrupted, by {@link Thread#interrupt}; the thread's
 * interrupted status is still set, as after {@link java.nio.channels.ClosedByInterruptException}.
 *
 * <p>A blocking operation of a group that ends so fails the group on all ranks, which name this
 * one: they would wait for it in vain. {@code Work.await} and calls of stores end alone: what they
 * waited for goes on, and can be waited for again once {@link Thread#interrupted} has cleared the
 * status. A call that need not wait does not look at it.
 */
public final class DistInterruptedException extends DistException {
  private static final long serialVersionUID = 1L;

  DistInterruptedException(String message) {
    super(message);
  }
}
