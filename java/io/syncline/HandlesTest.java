package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class HandlesTest {
  @Test
  void aClosedHandleSaysSoAndClosesTwice() {
    final HashStore store = HashStore.create();
    store.close();
    store.close();
    final var error = assertThrows(IllegalStateException.class, () -> store.numKeys());
    assertEquals("this HashStore has been closed", error.getMessage());
    assertThrows(IllegalStateException.class, () -> PrefixStore.create("p", store));
  }

  @Test
  void whatOthersUseLivesOn() {
    final HashStore store = HashStore.create();
    final PrefixStore part = PrefixStore.create("p", store);
    store.close();
    part.set("k", new byte[] {1});
    try (Store whole = part.underlyingStore()) {
      assertArrayEquals(new byte[] {1}, whole.get("p/k"));
    }
  }

  @Test
  void aClosedGroupIsClosedForAllItsHandles() {
    final World world = World.init("local", "", HashStore.create(), 0, 1);
    final ProcessGroup group = world.group();
    world.group().close(Duration.ofSeconds(5));
    final var error = assertThrows(DistBackendException.class, () -> group.barrier());
    assertTrue(error.getMessage().contains("closed"), error.getMessage());
    assertEquals(0, group.rank());
    group.close();
    assertThrows(IllegalStateException.class, group::rank);
    world.close();
    world.close();
  }

  @Test
  void closingDuringACallLetsTheCallFinish() throws Exception {
    final HashStore store = HashStore.create();
    final Store other = PrefixStore.create("", store).underlyingStore();
    final CompletableFuture<byte[]> value =
        CompletableFuture.supplyAsync(() -> store.get("key", Ranks.TIMEOUT));
    awaitUsers(store.resource, 2);
    store.close();
    assertThrows(IllegalStateException.class, store::numKeys);
    assertFalse(value.isDone());
    other.set("key", new byte[] {5});
    assertArrayEquals(new byte[] {5}, value.get(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
  }

  @Test
  void closingAGroupEndsACallOfAnotherThread() throws Exception {
    final CountDownLatch ended = new CountDownLatch(1);
    Ranks.run("local", 2, world -> {
      if (world.rank() == 1) {
        assertTrue(ended.await(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
        return;
      }
      final ProcessGroup group = world.group();
      final CompletableFuture<Void> call =
          CompletableFuture.runAsync(() -> group.allReduce(new float[3]));
      awaitUsers(group.resource, 2);
      group.close(Duration.ofMillis(100));
      final var error = assertThrows(
          ExecutionException.class, () -> call.get(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS));
      assertTrue(error.getCause() instanceof DistException, error.toString());
      assertThrows(IllegalStateException.class, () -> group.allReduce(new float[3]));
      ended.countDown();
    });
  }

  @Test
  void callsThatRaceWithACloseSucceedOrSayThatItIsClosed() throws Exception {
    for (int round = 0; round < 50; round++) {
      try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
        final ProcessGroup group = world.group();
        Ranks.inThreads(3, number -> {
          if (number == 0) {
            group.close();
            return;
          }
          try {
            while (true) {
              if (number == 1) {
                group.allReduce(new float[100]);
              } else {
                group.allReduceAsync(Tensor.of(new float[100]));
              }
            }
          } catch (IllegalStateException | DistBackendException e) {
            assertTrue(e.getMessage().contains("closed"), e.getMessage());
          }
        });
      }
    }
  }

  @Test
  void operationsOutliveAForgottenGroup() throws Exception {
    final List<WorkFuture> futures = Collections.synchronizedList(new ArrayList<>());
    try (HashStore store = HashStore.create(Ranks.TIMEOUT)) {
      Ranks.inThreads(2, rank -> futures.addAll(startAndForget(store, rank)));
    }
    for (int i = 0; i < 5; i++) {
      System.gc(); // Releases the worlds, in any order, at any time.
    }
    for (WorkFuture future : futures) {
      final String name = future.work().description();
      future.handle((result, failure) -> name).get(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS);
      assertTrue(future.work().isCompleted());
      future.work().close();
      assertThrows(IllegalStateException.class, () -> future.work().description());
    }
  }

  /** Operations of a world that nobody has closed, nor refers to. */
  private static List<WorkFuture> startAndForget(Store store, int rank) {
    final World world = World.init("local", "", store, rank, 2, Ranks.TIMEOUT);
    final Tensor tensor = Tensor.of(new float[100_000]);
    return List.of(world.group().allReduceAsync(tensor), world.group().barrierAsync());
  }

  private static void awaitUsers(Resource resource, int count) throws Exception {
    final var users = Resource.class.getDeclaredField("users");
    users.setAccessible(true);
    final long deadline = System.nanoTime() + Ranks.TIMEOUT.toNanos();
    while (users.getInt(resource) < count && System.nanoTime() < deadline) {
      Thread.onSpinWait();
    }
  }

  @Test
  void whatIsForgottenIsReleased(@TempDir Path folder) throws Exception {
    final Path file = folder.resolve("store"); // The last one to leave a file store removes it.
    openAndForget(file);
    assertTrue(Files.exists(file));
    final long deadline = System.nanoTime() + Ranks.TIMEOUT.toNanos();
    while (Files.exists(file) && System.nanoTime() < deadline) {
      System.gc();
      Thread.onSpinWait();
    }
    assertFalse(Files.exists(file), "a store that nobody refers to is still open");
  }

  private static void openAndForget(Path file) {
    FileStore.create(file.toString()).set("k", new byte[0]);
  }

  @Test
  void tensorsOfCppLiveLongerThanTheirOwner() {
    final Tensor gradient;
    final List<Tensor> parameters = List.of(Tensor.allocate(DType.FLOAT32, 2, 3));
    try (World world = World.init("local", "", HashStore.create(), 0, 1);
        Reducer reducer = Reducer.create(world.group(), parameters)) {
      gradient = reducer.gradient(0);
    }
    assertEquals("float32[2, 3]", gradient.toString());
    gradient.asFloatBuffer().put(5, 1.5f);
    assertEquals(1.5f, gradient.asFloatBuffer().get(5));
    gradient.close();
    assertThrows(IllegalStateException.class, gradient::asFloatBuffer);
  }

  @Test
  void aWorldOfOneNeedsNoLauncherAndNoStore() {
    try (World world = World.init("local")) {
      final float[] values = {1, 2};
      world.group().allReduce(values);
      assertArrayEquals(new float[] {1, 2}, values);
      assertEquals(1, world.size());
    }
  }

  @Test
  void aRankOutsideANewGroupGetsNull() throws Exception {
    Ranks.run(
        "local",
        3,
        world -> {
          final ProcessGroup group = world.newGroup(new int[] {2, 0});
          if (world.rank() == 1) {
            assertNull(group);
          } else {
            assertEquals(world.rank() == 2 ? 0 : 1, group.rank());
            assertArrayEquals(new int[] {2, 0}, group.ranks());
            group.close();
          }
        });
  }
}
