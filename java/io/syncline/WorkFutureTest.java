package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Form;
import io.syncline.testing.Ranks;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class WorkFutureTest {
  private static final long SECONDS = Ranks.TIMEOUT.toSeconds();

  @Test
  void arraysAreWrittenBeforeTheFutureCompletes() throws Exception {
    Ranks.run(
        "local",
        3,
        world -> {
          final float[] values = new float[100_001];
          java.util.Arrays.fill(values, world.rank() + 1);
          final WorkFuture future = world.group().allReduceAsync(Tensor.of(values));
          final float[] seen =
              future.thenApply(ignored -> values.clone()).get(SECONDS, TimeUnit.SECONDS);
          assertEquals(6, seen[0]);
          assertEquals(6, seen[100_000]);
          assertSame(future, future.work().future());
          assertTrue(future.work().isCompleted());
        });
  }

  @Test
  void aTimeoutCompletesTheFutureExceptionally() throws Exception {
    final CountDownLatch timedOut = new CountDownLatch(1);
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 1) {
            timedOut.await();
            return;
          }
          final float[] values = {1};
          final WorkFuture future =
              world
                  .group()
                  .allReduceAsync(Tensor.of(values), ReduceOp.SUM, Duration.ofMillis(200), 1);
          final var error =
              assertThrows(ExecutionException.class, () -> future.get(SECONDS, TimeUnit.SECONDS));
          assertEquals(DistTimeoutException.class, error.getCause().getClass());
          assertTrue(error.getCause().getMessage().contains("rank 1"), error.getMessage());
          assertArrayEquals(new float[] {1}, values);
          timedOut.countDown();
        });
  }

  @Test
  void cancellingAbortsTheGroupHereAndOnThePeer() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final ProcessGroup group = world.group();
          if (world.rank() == 0) {
            final WorkFuture future = group.allReduceAsync(Tensor.of(new float[3]));
            assertTrue(future.cancel(true));
            assertTrue(future.isCancelled());
            assertThrows(CancellationException.class, future::join);
            assertTrue(future.cancel(true));
            world.store().set("cancelled", new byte[0]);
          } else {
            world.store().get("cancelled", Ranks.TIMEOUT);
          }
          final var error = assertThrows(DistBackendException.class, group::barrier);
          assertTrue(error.getMessage().contains("was cancelled"), error.getMessage());
          assertTrue(error.getMessage().contains("all_reduce #"), error.getMessage());
        });
  }

  @Test
  void cancellingWithoutInterruptLeavesTheOperationAlone() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final float[] values = {world.rank()};
          final WorkFuture future = world.group().allReduceAsync(Tensor.of(values));
          if (world.rank() == 0) {
            future.cancel(false);
          } else {
            future.get(SECONDS, TimeUnit.SECONDS);
            assertEquals(1, values[0]);
          }
          future.work().await(Ranks.TIMEOUT);
          world.group().barrier();
        });
  }

  @Test
  void cancellingWhatIsDoneDoesNothing() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final WorkFuture future = world.group().barrierAsync();
      future.join();
      assertFalse(future.cancel(true));
      world.group().barrier();
    }
  }

  @Test
  void futuresThatNobodyKeepsStillHoldTheirMemory() throws Exception {
    final int rounds = 50;
    Ranks.run(
        "local",
        2,
        world -> {
          for (int i = 0; i < rounds; i++) {
            // The buffer is garbage at once.
            world.group().allReduceAsync(Tensor.of(Form.direct(10_000)));
            try (Tensor tensor = Tensor.allocate(DType.FLOAT64, 10_000)) {
              world.group().allReduceAsync(tensor); // And this is closed in flight.
            }
            if (i % 10 == 0) {
              System.gc();
            }
          }
          final double[] last = {1};
          world.group().allReduceAsync(Tensor.of(last)).get(SECONDS, TimeUnit.SECONDS);
          assertEquals(2, last[0]);
        });
  }

  @Test
  void whatDependsOnAFutureMayBlock() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final ProcessGroup group = world.group();
          final Store store = world.store();
          if (world.rank() == 1) {
            store.get("stages are there", Ranks.TIMEOUT);
            for (int i = 0; i < 4; i++) {
              group.barrier();
            }
            return;
          }
          final List<CompletableFuture<Void>> stages = new ArrayList<>();
          for (int i = 0; i < 3; i++) {
            stages.add(group.barrierAsync().thenRun(() -> store.get("go", Ranks.TIMEOUT)));
          }
          stages.add(group.barrierAsync().thenRun(() -> store.set("go", new byte[0])));
          store.set("stages are there", new byte[0]);
          for (CompletableFuture<Void> stage : stages) {
            stage.get(SECONDS, TimeUnit.SECONDS);
          }
        });
  }

  @Test
  void threadsOfStagesHaveNothingOfTheThreadThatNeededThem() throws Exception {
    final int many = 20; // More than wait for work already.
    final InheritableThreadLocal<String> local = new InheritableThreadLocal<>();
    final CountDownLatch started = new CountDownLatch(many);
    final BlockingQueue<String> seen = new LinkedBlockingQueue<>();
    final Runnable task = () -> {
      started.countDown();
      awaitQuietly(started);
      seen.add(local.get() + " " + Thread.currentThread().getContextClassLoader());
    };
    final Thread caller = new Thread(() -> {
      local.set("of the caller");
      IntStream.range(0, many).forEach(i -> Threads.execute(task));
    });
    caller.setContextClassLoader(new ClassLoader() {});
    caller.start();
    for (int i = 0; i < many; i++) {
      assertEquals(
          "null " + WorkFuture.class.getClassLoader(), seen.poll(SECONDS, TimeUnit.SECONDS));
    }
  }

  private static void awaitQuietly(CountDownLatch latch) {
    try {
      assertTrue(latch.await(SECONDS, TimeUnit.SECONDS));
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  @Test
  void operationsOfManyThreadsDoNotMix() throws Exception {
    final int threads = 4;
    Ranks.run(
        "local",
        2,
        world -> {
          final int peer = 1 - world.rank();
          Ranks.inThreads(
              threads,
              tag -> {
                for (int i = 0; i < 50; i++) {
                  final int[] sent = {tag, i};
                  final int[] received = new int[2];
                  final WorkFuture send = world.group().sendAsync(Tensor.of(sent), peer, tag);
                  assertEquals(peer, world.group().recv(received, peer, tag));
                  send.get(SECONDS, TimeUnit.SECONDS);
                  assertArrayEquals(sent, received);
                }
              });
          world.group().barrier();
        });
  }

  @Test
  void copiesOfArraysAreTakenAgainAndBounded() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          for (int i = 0; i < 20; i++) {
            world.group().allReduce(new double[1 << 20]);
            final Tensor larger = Tensor.of(new double[(1 << 20) + 1]);
            world.group().allReduceAsync(larger).get(SECONDS, TimeUnit.SECONDS);
          }
        });
    assertTrue(StagingPool.keptBytes() > 0);
    assertTrue(StagingPool.keptBytes() <= StagingPool.KEPT_BYTES);
  }

  @Test
  void closingTheGroupEndsWhatIsInFlight() throws Exception {
    final CountDownLatch ended = new CountDownLatch(1);
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 1) {
            ended.await();
            return;
          }
          final ProcessGroup group = world.group();
          final WorkFuture future = group.barrierAsync();
          group.close(Duration.ofMillis(100));
          final var error =
              assertThrows(ExecutionException.class, () -> future.get(SECONDS, TimeUnit.SECONDS));
          assertTrue(error.getCause() instanceof DistException, error.toString());
          assertFalse(future.cancel(true));
          ended.countDown();
        });
  }
}
