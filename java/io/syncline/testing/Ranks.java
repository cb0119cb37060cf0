package io.syncline.testing;

import io.syncline.HashStore;
import io.syncline.World;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Runs the ranks of a job as threads of this process. */
public final class Ranks {
  /** How long any wait of a test may last. */
  public static final Duration TIMEOUT = Duration.ofSeconds(60);

  /** What one rank does. */
  @FunctionalInterface
  public interface Rank {
    void run(World world) throws Exception;
  }

  private Ranks() {}

  /** Runs {@code rank} on {@code size} ranks over a backend; throws what the first one throws. */
  public static void run(String backend, int size, Rank rank) throws Exception {
    try (HashStore store = HashStore.create(TIMEOUT)) {
      inThreads(
          size,
          number -> {
            try (World world = World.init(backend, "", store, number, size, TIMEOUT)) {
              rank.run(world);
            }
          });
    }
  }

  /** A task of one of several threads. */
  @FunctionalInterface
  public interface Task {
    void run(int number) throws Exception;
  }

  /** Runs {@code task} on {@code count} threads; throws what the first to fail throws. */
  public static void inThreads(int count, Task task) throws Exception {
    final ExecutorService threads = Executors.newFixedThreadPool(count);
    try {
      final List<Throwable> failures = new ArrayList<>();
      final List<Future<?>> ends = new ArrayList<>();
      for (int i = 0; i < count; i++) {
        final int number = i;
        ends.add(
            threads.submit(
                () -> {
                  try {
                    task.run(number);
                  } catch (Throwable e) {
                    synchronized (failures) {
                      failures.add(e);
                    }
                    throw e;
                  }
                  return null;
                }));
      }
      for (Future<?> end : ends) {
        await(end, failures);
      }
      synchronized (failures) {
        rethrow(failures);
      }
    } finally {
      threads.shutdownNow();
    }
  }

  private static void await(Future<?> end, List<Throwable> failures) throws Exception {
    try {
      end.get(2 * TIMEOUT.toSeconds(), TimeUnit.SECONDS);
    } catch (ExecutionException e) {
      // It is among the failures.
    } catch (TimeoutException e) {
      synchronized (failures) {
        rethrow(failures);
      }
      throw e;
    }
  }

  private static void rethrow(List<Throwable> failures) throws Exception {
    if (failures.isEmpty()) {
      return;
    }
    final Throwable first = failures.get(0);
    failures.stream().skip(1).filter(other -> other != first).forEach(first::addSuppressed);
    if (first instanceof Error error) {
      throw error;
    }
    throw (Exception) first;
  }
}
