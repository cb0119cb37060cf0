package io.syncline;

import java.util.function.LongConsumer;

/** What Work has besides what all languages have. */
abstract class WorkBase extends NativeHandle {
  private WorkFuture future;

  WorkBase(long pointer, LongConsumer free) {
    super(pointer, free);
  }

  /**
   * The future of the operation.
   *
   * @return the same each time
   */
  public WorkFuture future() {
    return future;
  }

  /** Once, before anybody else knows of this Work. */
  final void setFuture(WorkFuture future) {
    this.future = future;
  }

  /** Has the future's settle() called when the operation is over. */
  static native void onComplete(long work, WorkFuture future);
}
