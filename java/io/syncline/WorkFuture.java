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
  private final Work work;
  private final Scope scope;
  private final Consumer<String> abort;

  /**
   * Takes charge of {@code scope}.
   *
   * @param abort ends what the operation belongs to, for the reason it is given; null if nothing
   * can
   */
  WorkFuture(Work work, Scope scope, Consumer<String> abort) {
    this.work = work;
    this.scope = scope;
    this.abort = abort;
  }

  /** Called once. */
  WorkFuture start() {
    work.setFuture(this);
    try (Scope call = new Scope()) {
      WorkBase.onComplete(call.use(work, "work"), this);
    } catch (Throwable e) {
      completeExceptionally(e); // The scope stays: the operation is in flight all the same.
    }
    return this;
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
  private void settle(int kind, byte[] message) {
    final Throwable failure = message == null ? null : DistException.of(kind, message);
    try {
      Threads.execute(() -> finish(failure));
    } catch (OutOfMemoryError e) { // No new thread.
      finish(failure);
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
      scope.close();
    }
    if (outcome == null) {
      complete(null);
    } else {
      completeExceptionally(outcome);
    }
  }
}
