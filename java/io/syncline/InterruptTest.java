package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What Thread.interrupt ends, while a deadline of {@link Ranks#TIMEOUT} is far away. */
class InterruptTest {
  /** On a loaded machine; the goal is 0.1 s. */
  private static final Duration SOON = Duration.ofSeconds(5);

  /** By then the call waits, most likely. An interrupt that comes before ends it as well. */
  private static final Duration MOMENT = Duration.ofMillis(150);

  private interface Call {
    void on(ProcessGroup group);
  }

  /** What the rank that is interrupted calls, and what the others do meanwhile. */
  private record Operation(String name, Call interrupted, Call others) {
    @Override
    public String toString() {
      return name;
    }
  }

  private static Stream<Arguments> operations() {
    final List<Operation> operations =
        List.of(
            new Operation("barrier", ProcessGroup::barrier, ProcessGroup::barrier),
            new Operation(
                "allReduce",
                group -> group.allReduce(new float[1000]),
                group -> group.allReduce(new float[1000])),
            new Operation("recv", group -> group.recv(new float[1], 2), ProcessGroup::barrier),
            new Operation(
                "behind another one",
                group -> {
                  group.barrierAsync();
                  group.barrier();
                },
                ProcessGroup::barrier),
            new Operation(
                "monitoredBarrier", ProcessGroup::monitoredBarrier, ProcessGroup::monitoredBarrier));
    return Stream.of("local", "shm", "gloo", "auto")
        .flatMap(backend -> operations.stream().map(each -> Arguments.of(backend, each)));
  }

  @ParameterizedTest
  @MethodSource("operations")
  void aBlockingOperationEndsAndFailsItsGroupOnAllRanksWhichNameTheInterruptedOne(
      String backend, Operation operation) throws Exception {
    final CountDownLatch failed = new CountDownLatch(2);
    // An interrupted rank would fail those that have not joined yet.
    final CountDownLatch joined = new CountDownLatch(3);
    Ranks.run(
        backend,
        3,
        world -> {
          joined.countDown();
          assertTrue(joined.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
          final ProcessGroup group = world.group();
          if (world.rank() == 0) {
            final String message = interrupted(() -> operation.interrupted.on(group));
            assertContains(message, "rank 0 of group 'default'");
            failed.countDown();
          } else if (world.rank() == 1) {
            assertNamesRankZero(() -> operation.others.on(group));
            failed.countDown();
          } else { // Stays away until the group has failed.
            assertTrue(failed.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
            assertNamesRankZero(group::barrier);
          }
          assertThrows(DistBackendException.class, group::barrier);
        });
  }

  @ParameterizedTest
  @ValueSource(strings = {"local", "shm", "gloo", "auto"})
  void aWaitForAWorkEndsAlone(String backend) throws Exception {
    final CountDownLatch waited = new CountDownLatch(1);
    Ranks.run(
        backend,
        2,
        world -> {
          final float[] values = {world.rank() + 1};
          if (world.rank() == 1) {
            assertTrue(waited.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
            world.group().allReduce(values);
          } else {
            final WorkFuture future = world.group().allReduceAsync(Tensor.of(values));
            final String message = interrupted(() -> future.work().await());
            assertFalse(future.isDone());
            waited.countDown();
            assertContains(message, "all_reduce #0 ");
            assertContains(message, " goes on, the wait for it has ended");
            future.work().await(Ranks.TIMEOUT);
            future.get(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS);
          }
          assertArrayEquals(new float[] {3}, values);
          world.group().barrier();
        });
  }

  @ParameterizedTest
  @ValueSource(strings = {"hash", "tcp", "file"})
  void aCallOfAStoreEndsAlone(String kind, @TempDir Path folder) throws Exception {
    try (Store store = open(kind, folder)) {
      interrupted(() -> store.get("never", Ranks.TIMEOUT));
      interrupted(() -> store.await(List.of("never"), Ranks.TIMEOUT));
      store.set("key", new byte[] {1});
      assertArrayEquals(new byte[] {1}, store.get("key"));
      store.set("never", new byte[0]);
      store.await(List.of("never"), Ranks.TIMEOUT);
    }
  }

  private static Store open(String kind, Path folder) {
    return switch (kind) {
      case "tcp" -> TCPStore.create("127.0.0.1", 0, true);
      case "file" -> FileStore.create(folder.resolve("store").toString());
      default -> HashStore.create();
    };
  }

  @ParameterizedTest
  @ValueSource(strings = {"local", "shm", "gloo", "auto"})
  void aJoinEndsForAllAndCanBeTriedAgain(String backend) throws Exception {
    try (HashStore store = HashStore.create(Ranks.TIMEOUT)) {
      Ranks.inThreads(
          2,
          rank -> {
            final Executable join =
                () -> World.init(backend, "", store, rank, 3, Ranks.TIMEOUT).close();
            if (rank == 0) {
              final var error = assertThrows(DistBackendException.class, join);
              assertContains(error.getMessage(), "was interrupted by Thread.interrupt");
            } else {
              while (store.listKeys().stream().noneMatch(key -> key.contains("slot/"))) {
                Thread.onSpinWait(); // Until rank 0 waits.
              }
              interrupted(join);
            }
          });
      Ranks.inThreads(
          3,
          rank -> {
            try (World world = World.init(backend, "", store, rank, 3, Ranks.TIMEOUT)) {
              world.group().barrier();
            }
          });
    }
  }

  @Test
  void whatNeedNotWaitIsNotInterrupted() {
    try (HashStore store = HashStore.create();
        World world = World.init("local", "", store, 0, 1)) {
      Thread.currentThread().interrupt();
      world.group().barrier();
      world.group().allReduceAsync(Tensor.of(new float[1]));
      store.set("key", new byte[0]);
      assertTrue(Thread.interrupted());
    }
  }

  /** Makes the call, which this thread's interrupt must end soon; returns what it throws says. */
  private static String interrupted(Executable call) throws InterruptedException {
    final Thread waiting = Thread.currentThread();
    final long[] moment = new long[1];
    final Thread interrupter =
        new Thread(
            () -> {
              try {
                Thread.sleep(MOMENT.toMillis());
              } catch (InterruptedException e) {
                throw new AssertionError(e);
              }
              moment[0] = System.nanoTime();
              waiting.interrupt();
            });
    interrupter.start();
    final DistInterruptedException error = assertThrows(DistInterruptedException.class, call);
    final long end = System.nanoTime();
    assertTrue(Thread.interrupted(), "the interrupted status is still set");
    interrupter.join();
    assertTrue(end - moment[0] < SOON.toNanos(), "ended after " + (end - moment[0]) + " ns");
    assertContains(error.getMessage(), "interrupted by Thread.interrupt");
    assertEquals(DistInterruptedException.class, error.getClass());
    return error.getMessage();
  }

  private static void assertNamesRankZero(Executable call) {
    final String message = assertThrows(DistBackendException.class, call).getMessage();
    assertContains(message, "interrupted by Thread.interrupt");
    assertTrue(message.replaceFirst("rank [12] of group 'default'", "").contains("rank 0"), message);
  }

  private static void assertContains(String message, String part) {
    assertTrue(message.contains(part), message);
  }
}
