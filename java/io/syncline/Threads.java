package io.syncline;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/**
 * Which thread does what. A native wait holds a virtual thread's carrier, so such a wait happens on
 * a platform thread of our own; futures complete there too, since what their users do then may
 * block.
 */
final class Threads {
  /** Thread.isVirtual; null where the JDK has no virtual threads. */
  private static final MethodHandle IS_VIRTUAL = isVirtualMethod();

  private static final AtomicInteger started = new AtomicInteger();

  /** As many daemons as there are calls at a time; they end when idle. */
  private static final ThreadPoolExecutor POOL =
      new ThreadPoolExecutor(
          0,
          Integer.MAX_VALUE,
          10,
          TimeUnit.SECONDS,
          new SynchronousQueue<>(),
          Threads::newThread);

  private Threads() {}

  /** A thread that has nothing of the one that happens to need it first: it will serve others. */
  private static Thread newThread(Runnable task) {
    final Thread thread = new Thread(null, task, "syncline-" + started.incrementAndGet(), 0, false);
    thread.setDaemon(true);
    thread.setPriority(Thread.NORM_PRIORITY);
    thread.setContextClassLoader(Threads.class.getClassLoader());
    return thread;
  }

  static boolean isVirtual() {
    try {
      return IS_VIRTUAL != null && (boolean) IS_VIRTUAL.invokeExact(Thread.currentThread());
    } catch (Throwable e) {
      throw new AssertionError(e);
    }
  }

  /** Runs {@code task} on a thread that may block. */
  static void execute(Runnable task) {
    POOL.execute(task);
  }

  /** The value of {@code call}, made on this thread unless it is virtual. */
  static <T> T call(Supplier<T> call) {
    if (!isVirtual()) {
      return call.get();
    }
    final Offloaded<T> offloaded = new Offloaded<>(call);
    POOL.execute(offloaded);
    return offloaded.await();
  }

  static void run(Runnable call) {
    call(
        () -> {
          call.run();
          return null;
        });
  }

  /** What {@code future} failed with, seen from the caller. */
  static RuntimeException unwrap(CompletionException failure) {
    final Throwable cause = failure.getCause();
    if (cause instanceof RuntimeException exception) {
      exception.fillInStackTrace();
      return exception;
    } else if (cause instanceof Error error) {
      throw error;
    }
    return failure;
  }

  private static MethodHandle isVirtualMethod() {
    try {
      return MethodHandles.publicLookup()
          .findVirtual(Thread.class, "isVirtual", MethodType.methodType(boolean.class));
    } catch (ReflectiveOperationException e) {
      return null;
    }
  }

  /** A call made on another thread, to which it hands on the interrupts of the one that waits. */
  private static final class Offloaded<T> implements Runnable {
    private final Supplier<T> call;
    private final CompletableFuture<T> result = new CompletableFuture<>();
    private Thread runner; // While it runs.
    private boolean interrupted;

    Offloaded(Supplier<T> call) {
      this.call = call;
    }

    @Override
    public void run() {
      begin();
      T value = null;
      Throwable failure = null;
      try {
        value = call.get();
      } catch (Throwable e) {
        failure = e;
      }
      end();
      if (failure == null) {
        result.complete(value);
      } else {
        result.completeExceptionally(failure);
      }
    }

    T await() {
      boolean interruptedHere = false;
      try {
        while (true) {
          try {
            result.get();
            break;
          } catch (InterruptedException e) {
            interruptedHere = true;
            interrupt();
          } catch (java.util.concurrent.ExecutionException e) {
            break; // join() throws it.
          }
        }
        return result.join();
      } catch (CompletionException e) {
        throw unwrap(e);
      } finally {
        if (interruptedHere) {
          Thread.currentThread().interrupt();
        }
      }
    }

    private synchronized void begin() {
      runner = Thread.currentThread();
      if (interrupted) {
        runner.interrupt();
      }
    }

    private synchronized void end() {
      runner = null;
      Thread.interrupted(); // The thread's next task has nothing to do with it.
    }

    private synchronized void interrupt() {
      interrupted = true;
      if (runner != null) {
        runner.interrupt();
      }
    }
  }
}
