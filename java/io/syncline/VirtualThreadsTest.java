package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.syncline.testing.Ranks;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Skipped where the JDK has no virtual threads; more waits than a machine has carriers. */
class VirtualThreadsTest {
  private static final int MANY = 200;

  private Method startVirtualThread;

  @BeforeEach
  void findVirtualThreads() {
    try {
      startVirtualThread = Thread.class.getMethod("startVirtualThread", Runnable.class);
    } catch (NoSuchMethodException e) {
      assumeTrue(false, "this JDK has no virtual threads");
    }
  }

  @Test
  void waitsHoldNoCarrier() throws Exception {
    final ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
    try (HashStore store = HashStore.create()) {
      final CountDownLatch done = new CountDownLatch(MANY);
      for (int i = 0; i < MANY; i++) {
        final String key = "key" + i;
        start(failures, () -> store.get(key, Ranks.TIMEOUT), done::countDown);
      }
      for (int i = 0; i < MANY; i++) {
        final String key = "key" + i;
        start(failures, () -> store.set(key, new byte[0]), () -> {});
      }
      assertTrue(done.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS), failures.toString());
      assertEquals(List.of(), new ArrayList<>(failures));
    }
  }

  @Test
  void manyRanksOnVirtualThreadsMeetInCollectives() throws Exception {
    final int ranks = 7;
    final ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
    final CountDownLatch done = new CountDownLatch(ranks);
    try (HashStore store = HashStore.create()) {
      for (int i = 0; i < ranks; i++) {
        final int rank = i;
        final Runnable run =
            () -> {
              assertTrue(Threads.isVirtual());
              try (World world = World.init("local", "", store, rank, ranks, Ranks.TIMEOUT)) {
                for (int round = 0; round < 20; round++) {
                  final float[] values = {rank};
                  world.group().allReduce(values);
                  assertEquals(21, values[0]);
                  world.group().barrier();
                  final int[] got = new int[1];
                  final int next = (rank + 1) % ranks;
                  final int previous = (rank + ranks - 1) % ranks;
                  final Tensor mine = Tensor.of(new int[] {rank});
                  final WorkFuture sent = world.group().sendAsync(mine, next);
                  assertEquals(previous, world.group().recv(got, previous));
                  sent.join();
                }
              }
            };
        start(failures, run, done::countDown);
      }
      assertTrue(done.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS), failures.toString());
    }
    assertEquals(List.of(), new ArrayList<>(failures));
  }

  @Test
  void errorsAndInterruptsReachTheVirtualThread() throws Exception {
    final ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
    final CountDownLatch done = new CountDownLatch(1);
    final AtomicReference<Throwable> interrupted = new AtomicReference<>();
    try (HashStore store = HashStore.create()) {
      final Thread thread =
          start(
              failures,
              () -> {
                try {
                  store.get("never", Ranks.TIMEOUT);
                } catch (DistInterruptedException e) {
                  interrupted.set(e);
                  assertTrue(Thread.interrupted());
                }
                try (World world = World.init("local", "", store, 0, 1)) {
                  world.group().broadcast(new float[1], 5);
                } catch (IllegalArgumentException e) {
                  done.countDown();
                }
              },
              () -> {});
      thread.interrupt();
      assertTrue(done.await(Ranks.TIMEOUT.toSeconds() / 2, TimeUnit.SECONDS), failures.toString());
      assertEquals(DistInterruptedException.class, interrupted.get().getClass());
      assertFalse(store.check(List.of("never")));
    }
  }

  private Thread start(ConcurrentLinkedQueue<Throwable> failures, Runnable run, Runnable end)
      throws Exception {
    final Runnable body =
        () -> {
          try {
            run.run();
          } catch (Throwable e) {
            failures.add(e);
          } finally {
            end.run();
          }
        };
    return (Thread) startVirtualThread.invoke(null, body);
  }
}
