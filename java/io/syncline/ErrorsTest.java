package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Form;
import io.syncline.testing.Ranks;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class ErrorsTest {
  private static final Duration SHORT = Duration.ofMillis(200);

  @Test
  void badArgumentsAreIllegalAndTheGroupGoesOn() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final ProcessGroup group = world.group();
      fails(IllegalArgumentException.class, "root", () -> group.broadcast(new float[1], 9));
      final var readOnly = Form.direct(3).asReadOnlyBuffer();
      fails(
          IllegalArgumentException.class,
          "read-only",
          () -> group.allReduce(Tensor.of(readOnly)));
      fails(
          IllegalArgumentException.class, "", () -> group.allReduce(new float[1], ReduceOp.BAND));
      fails(NullPointerException.class, "op", () -> group.allReduce(new float[1], null));
      fails(NullPointerException.class, "tensor", () -> group.allReduce((float[]) null));
      fails(NullPointerException.class, "tensor", () -> group.allReduceAsync((Tensor) null));
      fails(
          NullPointerException.class,
          "outputs",
          () -> group.allGather(Arrays.asList((Tensor) null), Tensor.of(new float[1])));
      fails(
          IllegalArgumentException.class,
          "on the heap",
          () -> group.allReduce(Tensor.of(java.nio.FloatBuffer.allocate(1))));
      fails(
          IllegalArgumentException.class,
          "timeout",
          () -> group.allReduce(Tensor.of(new float[1]), ReduceOp.SUM, Duration.ZERO, 1));
      group.allReduce(
          Tensor.of(new float[1]), ReduceOp.SUM, Duration.ofSeconds(Long.MAX_VALUE), 1);
    }
  }

  @Test
  void floatsOfEightBitsAreMovedAndNotReduced() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final ProcessGroup group = world.group();
      for (DType type : List.of(DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)) {
        final Tensor input = Tensor.allocate(type, 256);
        final Tensor output = Tensor.allocate(type, 256);
        for (int i = 0; i < 256; i++) {
          input.asByteBuffer().put(i, (byte) i);
        }
        group.allGatherSingle(output, input);
        assertEquals(input.asByteBuffer(), output.asByteBuffer());
        fails(
            UnsupportedOperationException.class,
            "backend local does not serve all_reduce of " + type,
            () -> group.allReduce(output));
        fails(
            UnsupportedOperationException.class,
            "does not serve all_reduce of " + type,
            () -> group.allReduceCoalesced(List.of(output)));
        assertEquals(input.asByteBuffer(), output.asByteBuffer());
      }
    }
  }

  @Test
  void arraysThatAreOneShareMemoryAsTensorsDo() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final ProcessGroup group = world.group();
      final float[] array = {1, 2};
      final Tensor tensor = Tensor.allocate(DType.FLOAT32, 2);
      fails(IllegalArgumentException.class, "shares memory",
          () -> group.allToAll(List.of(tensor), List.of(tensor)));
      fails(IllegalArgumentException.class, "shares memory",
          () -> group.allToAll(List.of(Tensor.of(array)), List.of(Tensor.of(array))));
      group.allReduceCoalesced(List.of(Tensor.of(new float[] {0}), Tensor.of(array)));
      assertArrayEquals(new float[] {1, 2}, array);
    }
  }

  @Test
  void aReadOnlyBufferMayBeSent() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final var input = Form.direct(2).put(0, 3).put(1, 4).asReadOnlyBuffer();
      final var output = Form.direct(2);
      world.group().allGatherSingle(Tensor.of(output), Tensor.of(input));
      assertEquals(4, output.get(1));
    }
  }

  @Test
  void aWaitThatIsTooLongIsATimeoutThatNamesTheKey() {
    try (HashStore store = HashStore.create()) {
      fails(DistTimeoutException.class, "'name'", () -> store.get("name", SHORT));
      fails(DistTimeoutException.class, "k2", () -> store.await(List.of("k1", "k2"), SHORT));
    }
  }

  @Test
  void aNumberThatIsNoneIsAnErrorOfTheStore() {
    try (HashStore store = HashStore.create()) {
      store.set("k", "no number".getBytes(StandardCharsets.UTF_8));
      fails(DistStoreException.class, "'k'", () -> store.add("k", 1));
    }
  }

  @Test
  void textOfAnyKindCrossesUnchanged() {
    final String key = "a\u0000b é € \uD83D\uDE00 \uFFFF";
    try (HashStore store = HashStore.create()) {
      store.set(key, new byte[] {0, -1});
      assertEquals(List.of(key), store.listKeys());
      assertArrayEquals(new byte[] {0, -1}, store.get(key));
      fails(IllegalArgumentException.class, "surrogate", () -> store.set("\uD83D", new byte[0]));
      fails(NullPointerException.class, "key", () -> store.set(null, new byte[0]));
      fails(NullPointerException.class, "value", () -> store.set("k", null));
    }
  }

  @Test
  void ranksThatDisagreeGetAMismatchThatNamesBothCalls() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final Executable call =
              world.rank() == 0
                  ? () -> world.group().allReduce(new float[4])
                  : () -> world.group().broadcast(new float[4], 0);
          final var error = assertThrows(DistMismatchException.class, call);
          assertTrue(error.getMessage().contains("all_reduce"), error.getMessage());
          assertTrue(error.getMessage().contains("broadcast"), error.getMessage());
          assertEquals(List.of(0, 1), error.ranks());
          assertEquals(world.rank() == 0 ? "all_reduce" : "broadcast", error.operation().get());
          assertEquals(0, error.sequence().getAsLong());
        });
  }

  @Test
  void aMissingRankIsATimeoutThatNamesIt() throws Exception {
    final CountDownLatch timedOut = new CountDownLatch(1);
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 1) {
            timedOut.await();
            fails(DistException.class, "", () -> world.group().barrier());
            return;
          }
          final float[] values = {1};
          final DistException error =
              fails(
                  DistTimeoutException.class,
                  "rank 1",
                  () -> world.group().allReduce(Tensor.of(values), ReduceOp.SUM, SHORT, 1));
          assertArrayEquals(new float[] {1}, values);
          assertOrigin(List.of(1), "all_reduce", 0, error);
          timedOut.countDown();
        });
  }

  @Test
  void aFutureFailsWithTheRanksAtFault() throws Exception {
    final CountDownLatch timedOut = new CountDownLatch(1);
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 1) {
            timedOut.await();
            return;
          }
          final var failed =
              assertThrows(
                  ExecutionException.class, () -> world.group().barrierAsync(SHORT).get());
          assertOrigin(List.of(1), "barrier", 0, (DistException) failed.getCause());
          timedOut.countDown();
        });
  }

  @Test
  void aRankThatIsGoneIsAmongTheRanksAtFault() throws Exception {
    final CountDownLatch gone = new CountDownLatch(1);
    Ranks.run(
        "shm",
        2,
        world -> {
          world.group().barrier();
          if (world.rank() == 1) {
            world.close();
            gone.countDown();
            return;
          }
          gone.await();
          assertOrigin(
              List.of(1),
              "barrier",
              1,
              fails(DistBackendException.class, "has left", () -> world.group().barrier()));
        });
  }

  @Test
  void anErrorOfNoGroupHasNoOrigin() {
    try (HashStore store = HashStore.create()) {
      final DistException error =
          fails(DistTimeoutException.class, "'name'", () -> store.get("name", SHORT));
      assertEquals(List.of(), error.ranks());
      assertTrue(error.operation().isEmpty());
      assertTrue(error.sequence().isEmpty());
    }
  }

  @Test
  void anAbortReachesThePeerWithItsReason() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 0) {
            world.group().abort("enough of it");
          }
          fails(DistBackendException.class, "enough of it", () -> world.group().barrier());
        });
  }

  @Test
  void anUnknownBackendIsRefusedWithThoseThereAre() {
    fails(
        IllegalArgumentException.class,
        "local",
        () -> World.init("none", "", HashStore.create(), 0, 1));
  }

  @Test
  void aServerThatIsNotThereIsAnErrorOfTheNetworkOrATimeout() {
    final int port;
    try (TCPStore store = TCPStore.create("127.0.0.1", 0, true)) {
      port = store.port();
    }
    fails(
        DistException.class,
        String.valueOf(port),
        () -> TCPStore.create("127.0.0.1", port, false, SHORT));
  }

  @Test
  void everyKindOfErrorHasItsException() {
    final List<Class<?>> classes =
        List.of(
            IllegalArgumentException.class,
            IllegalArgumentException.class,
            DistTimeoutException.class,
            DistNetworkException.class,
            DistStoreException.class,
            DistBackendException.class,
            DistMismatchException.class,
            UnsupportedOperationException.class,
            DistException.class,
            DistInterruptedException.class);
    for (int kind = 0; kind < classes.size(); kind++) {
      final var error = DistException.of(kind, "mëssage".getBytes(StandardCharsets.UTF_8));
      assertEquals(classes.get(kind), error.getClass());
      assertEquals("mëssage", error.getMessage());
    }
    final byte[] operation = "all_reduce".getBytes(StandardCharsets.UTF_8);
    final var error = DistException.of(3, new byte[0], new int[] {1, 4}, operation, 7);
    assertOrigin(List.of(1, 4), "all_reduce", 7, (DistNetworkException) error);
  }

  @Test
  void anInterruptEndsAWaitAndStaysVisible() throws Exception {
    final AtomicReference<Throwable> error = new AtomicReference<>();
    final AtomicBoolean flag = new AtomicBoolean();
    try (HashStore store = HashStore.create()) {
      final Thread waiter =
          new Thread(
              () -> {
                try {
                  store.get("never", Ranks.TIMEOUT);
                } catch (Throwable e) {
                  error.set(e);
                  flag.set(Thread.currentThread().isInterrupted());
                }
              });
      waiter.start();
      waiter.interrupt();
      waiter.join(Ranks.TIMEOUT.toMillis() / 2);
      assertEquals(DistInterruptedException.class, error.get().getClass());
      assertTrue(flag.get());
      store.set("never", new byte[0]); // The store is as it was.
    }
  }

  @Test
  void anInterruptLeavesTheOperationInFlight() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          if (world.rank() == 0) {
            final Work work = world.group().barrierAsync().work();
            Thread.currentThread().interrupt();
            assertThrows(DistInterruptedException.class, () -> work.await(Ranks.TIMEOUT));
            assertTrue(Thread.interrupted());
            world.store().set("interrupted", new byte[0]);
            work.await(Ranks.TIMEOUT);
          } else {
            world.store().get("interrupted", Ranks.TIMEOUT);
            world.group().barrier();
          }
        });
  }

  private static <T extends Throwable> T fails(Class<T> type, String message, Executable call) {
    final T error = assertThrows(type, call);
    assertTrue(error.getMessage().contains(message), error.getMessage());
    return error;
  }

  private static void assertOrigin(
      List<Integer> ranks, String operation, long sequence, DistException error) {
    assertEquals(ranks, error.ranks());
    assertEquals(operation, error.operation().orElse(null));
    assertEquals(sequence, error.sequence().orElse(-1));
  }
}
