package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Queues within one process; tests/languages has those between processes. */
class TensorQueueTest {
  private static final Duration SHORT = Duration.ofMillis(10);

  @Test
  void messagesComeOutAsTheyWereAndInTheirOrder() {
    final byte[] note = "a\0b".getBytes(StandardCharsets.UTF_8);
    try (TensorQueue queue = TensorQueue.create(1 << 16);
        Tensor owned = Tensor.allocate(DType.COMPLEX64, 2, 0, 3)) {
      queue.put(List.of(Tensor.of(new int[] {1, 2, 3, 4}, 2, 2), owned), note, Ranks.TIMEOUT);
      queue.put(List.of(), Ranks.TIMEOUT);
      assertEquals(2, queue.size());
      assertTrue(queue.bytes() > 0);
      assertTrue(queue.capacity() >= 1 << 16);
      try (TensorQueue.Message message = queue.get(Ranks.TIMEOUT).orElseThrow()) {
        assertArrayEquals(note, message.note());
        assertEquals("[int32[2, 2], complex64[2, 0, 3]]", message.tensors().toString());
        assertEquals(4, message.tensors().get(0).asIntBuffer().get(3));
      }
      final TensorQueue.Message empty = queue.poll().orElseThrow();
      assertEquals(0, empty.tensors().size());
      assertEquals(0, empty.note().length);
      assertEquals(Optional.empty(), queue.poll());
      assertEquals(0, queue.lostPuts() + queue.lostGets() + queue.size());
    }
  }

  @Test
  void waitsEndInTimeAndOffersAtOnce() {
    try (TensorQueue queue = TensorQueue.create(1 << 16, 1)) {
      assertThrows(DistTimeoutException.class, () -> queue.get(SHORT));
      assertThrows(DistTimeoutException.class, () -> queue.get(Duration.ZERO));
      final List<Tensor> one = List.of(Tensor.of(new long[] {7}));
      assertTrue(queue.offer(one, new byte[0]));
      assertFalse(queue.offer(one, new byte[0]));
      assertThrows(DistTimeoutException.class, () -> queue.put(one, SHORT));
      assertThrows(DistTimeoutException.class, () -> queue.put(one, Duration.ZERO));
      assertEquals(7, queue.poll().orElseThrow().tensors().get(0).asLongBuffer().get(0));
    }
  }

  @Test
  void aQueueThatIsShutDownGivesWhatItHasThenNothing() {
    try (TensorQueue queue = TensorQueue.create(1 << 16)) {
      queue.put(List.of(), Ranks.TIMEOUT);
      assertFalse(queue.isShutdown());
      queue.shutdown();
      assertTrue(queue.isShutdown());
      assertThrows(DistBackendException.class, () -> queue.put(List.of(), Ranks.TIMEOUT));
      assertThrows(DistBackendException.class, () -> queue.offer(List.of(), new byte[0]));
      assertTrue(queue.get(Ranks.TIMEOUT).isPresent());
      assertEquals(Optional.empty(), queue.get(Ranks.TIMEOUT));
      assertEquals(Optional.empty(), queue.poll());
    }
  }

  @Test
  void wrongArgumentsAreRefused() {
    assertThrows(IllegalArgumentException.class, () -> TensorQueue.create(0));
    assertThrows(IllegalArgumentException.class, () -> TensorQueue.create(1 << 16, -1));
    assertThrows(DistBackendException.class, () -> TensorQueue.create(1L << 45));
    assertThrows(IllegalArgumentException.class, () -> TensorQueue.open("nonsense"));
    assertThrows(NullPointerException.class, () -> TensorQueue.open(null));
    try (TensorQueue queue = TensorQueue.create(1 << 16)) {
      final List<Tensor> large = List.of(Tensor.of(new double[100_000]));
      final var error =
          assertThrows(IllegalArgumentException.class, () -> queue.put(large, Ranks.TIMEOUT));
      assertTrue(error.getMessage().contains("capacity is 65536 bytes"), error.getMessage());
      assertThrows(NullPointerException.class, () -> queue.put(null, Ranks.TIMEOUT));
      assertThrows(NullPointerException.class, () -> queue.offer(List.of(), null));
    }
    final TensorQueue closed = TensorQueue.create(1 << 16);
    closed.close();
    assertThrows(IllegalStateException.class, closed::poll);
  }

  @Test
  void aHandleOpensTheQueueAndAnotherTheTensor() {
    try (TensorQueue queue = TensorQueue.create(1 << 16);
        TensorQueue again = TensorQueue.open(queue.handle());
        Tensor made = Tensor.emptyShared(DType.FLOAT64, 2, 2);
        Tensor opened = Tensor.openShared(made.sharedHandle())) {
      queue.put(List.of(made), Ranks.TIMEOUT);
      assertTrue(again.poll().isPresent());
      made.asDoubleBuffer().put(3, 5);
      assertEquals(5, opened.asDoubleBuffer().get(3));
      assertEquals(made.toString(), opened.toString());
      assertEquals(
          made.sharedHandle(), Tensor.of(made.asDoubleBuffer(), 2, 2).sharedHandle());
      for (Tensor unshared :
          List.of(
              Tensor.of(new float[3]),
              Tensor.allocate(DType.INT8, 3),
              Tensor.of(made.asByteBuffer().asReadOnlyBuffer()),
              Tensor.emptyShared(DType.INT8, 0))) {
        assertThrows(IllegalArgumentException.class, unshared::sharedHandle);
      }
      assertThrows(IllegalArgumentException.class, () -> Tensor.openShared(queue.handle()));
    }
  }

  @Test
  void anInterruptEndsAWait() throws InterruptedException {
    try (TensorQueue queue = TensorQueue.create(1 << 16)) {
      final AtomicReference<Throwable> thrown = new AtomicReference<>();
      final Thread waiter =
          new Thread(
              () -> {
                try {
                  queue.get(Ranks.TIMEOUT);
                } catch (Throwable e) {
                  thrown.set(e);
                }
              });
      waiter.start();
      waiter.interrupt(); // Before or while it waits.
      waiter.join(Ranks.TIMEOUT.toMillis());
      assertEquals(DistInterruptedException.class, thrown.get().getClass());
      queue.put(List.of(), Ranks.TIMEOUT);
      assertTrue(queue.poll().isPresent());
    }
  }
}
