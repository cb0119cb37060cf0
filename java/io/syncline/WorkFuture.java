package io.syncline;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Consumer;

/**
 * An operation in flight. It completes when the operation has finished here, exceptionally with
 * what the blocking form would have thrown; where the operation was given arrays, its result is in
 * them by then.
 *
 * <p>Until then the operation's tensors and arrays must stay untouched; they are kept alive, also
 * if nobody keeps this future. Stages that depend on it, if they were added before it completed,
 * run on daemon threads of this package, one for each future that completes at a time, so they may
 * block.
 */
public final class WorkFuture extends CompletableFuture<Void> {
  private static final int SUCCEEDED = -1; // In place of the number of an exception.

  private final Work work;
  private final Scope scope;
  private final Consumer<String> abort;

  private WorkFuture(Work work, Scope scope, Consumer<String> abort) {
    this.work = work;
    this.scope = scope;
    this.abort = abort;
  }

  /**
   * The future of an operation that has just been started, which from now on has the scope.
   *
   * @param scope what the operation uses: kept, whatever goes wrong here, while it is in flight
   * @param abort ends what the operation belongs to, for the reason it is given; null if nothing
   * can
   * @param pointer the operation's Work
   */
  static WorkFuture of(Scope scope, Consumer<String> abort, long pointer) {
    scope.inFlight();
    final Work work = new Work(pointer);
    final WorkFuture future = new WorkFuture(work, scope, abort);
    work.setFuture(future);
    try (Scope call = new Scope()) {
      WorkBase.onComplete(call.use(work, "work"), future);
    } catch (Throwable e) {
      future.completeExceptionally(e);
    }
    return future;
  }

  /**
   * The operation itself.
   *
   * @return its handle
   */
  public Work work() {
    return work;
  }

  /**
   * Gives the operation up. A collective cannot be stopped on one rank alone: if it has not
   * finished, {@code cancel(true)} aborts its whole group, here and on the peers, where operations
   * in flight fail with a {@link DistBackendException} that says so. {@code cancel(false)} only
   * completes this future; the operation goes on, and its tensors remain its own until it has
   * finished.
   *
   * @param mayInterruptIfRunning whether to abort the group
   * @return whether this future is cancelled now
   */
  @Override
  public boolean cancel(boolean mayInterruptIfRunning) {
    final boolean wasDone = isDone();
    final boolean cancelled = super.cancel(mayInterruptIfRunning);
    if (cancelled && !wasDone && mayInterruptIfRunning && abort != null) {
      try {
        if (!work.isCompleted()) {
          abort.accept("the future of " + work.description() + " was cancelled");
        }
      } catch (IllegalStateException e) {
        // The group or the Work has been closed, which has ended the operation or lets it go.
      }
    }
    return cancelled;
  }

  /** Waits, whatever interrupts it; throws what the operation failed with. */
  void await() {
    try {
      join();
    } catch (CompletionException e) {
      throw Threads.unwrap(e);
    }
  }

  /** Called by native code on the thread that ran the operation, which must not wait. */
  private void settle(int kind, byte[] message, int[] ranks, byte[] operation, long sequence) {
    final Throwable failure =
        kind == SUCCEEDED ? null : failureOf(kind, message, ranks, operation, sequence);
    try {
      Threads.execute(() -> finish(failure));
    } catch (Throwable e) { // No new thread, or no memory.
      finish(failure);
    }
  }

  private static Throwable failureOf(
      int kind, byte[] message, int[] ranks, byte[] operation, long sequence) {
    try {
      return DistException.of(kind, message, ranks, operation, sequence);
    } catch (Throwable e) { // Better than a future that never completes.
      return e;
    }
  }

  private void finish(Throwable failure) {
    Throwable outcome = failure;
    try {
      if (outcome == null && !isDone()) {
        scope.copyBack();
      }
    } catch (Throwable e) {
      outcome = e;
    } finally {
      scope.end();
    }
    if (outcome == null) {
      complete(null);
    } else {
      completeExceptionally(outcome);
    }
  }
}
