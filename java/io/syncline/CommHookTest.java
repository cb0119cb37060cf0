package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Communication hooks that are written in Java, through a Reducer. */
class CommHookTest {
  private static final int STEPS = 3;

  private static Reducer reducer(World world) {
    return Reducer.create(world.group(), List.of(Tensor.allocate(DType.FLOAT32, 3)));
  }

  private static float step(Reducer reducer, float value) {
    reducer.copyReady(0, Tensor.of(new float[] {value, value, value}));
    reducer.finish();
    return reducer.gradient(0).asFloatBuffer().get(2);
  }

  @Test
  void aHookOfOnesOwnAveragesOnEveryRank() throws Exception {
    for (int size : new int[] {1, 2, 3}) {
      Ranks.run(
          "local",
          size,
          world -> {
            final AtomicInteger calls = new AtomicInteger();
            final CommHook hook =
                CommHook.of(
                    "doubled",
                    (bucket, group) -> {
                      calls.incrementAndGet();
                      assertEquals(size, group.size());
                      assertEquals(List.of(0L, 1L), List.of(bucket.index() + 0L, bucket.count()));
                      assertEquals(3, bucket.gradients().get(0).asFloatBuffer().limit());
                      final Tensor buffer = bucket.buffer();
                      group.allReduce(buffer);
                      for (int i = 0; i < 3; i++) {
                        final float sum = buffer.asFloatBuffer().get(i);
                        buffer.asFloatBuffer().put(i, 2 * sum / bucket.divisor());
                      }
                    });
            assertEquals("doubled", hook.name());
            try (Reducer reducer = reducer(world)) {
              reducer.setHook(hook);
              hook.close(); // The reducer keeps it.
              for (int step = 0; step < STEPS; step++) {
                assertEquals(step + size - 1f, step(reducer, world.rank() + step / 2f), 1e-6);
              }
              assertEquals(STEPS, calls.get());
              reducer.setHook(null);
              assertEquals((size - 1) / 2f, step(reducer, world.rank()), 1e-6);
              assertEquals(STEPS, calls.get());
            }
          });
    }
  }

  @Test
  void whatItThrowsIsQuotedOnEveryRank() throws Exception {
    Ranks.run(
        "local",
        3,
        world -> {
          final CommHook hook =
              CommHook.of(
                  "failing",
                  (bucket, group) -> {
                    if (group.rank() == 1) {
                      throw new java.io.IOException("no ink");
                    }
                    group.allReduce(bucket.buffer());
                  });
          final Reducer reducer = reducer(world);
          reducer.setHook(hook);
          final RuntimeException thrown =
              assertThrows(DistException.class, () -> step(reducer, 1));
          assertTrue(thrown.getMessage().contains("'failing'"), thrown.getMessage());
          assertTrue(
              thrown.getMessage().contains("rank 1: java.io.IOException: no ink"),
              thrown.getMessage());
        });
  }

  @Test
  void theKindOfAnExceptionStays() throws Exception {
    Ranks.run(
        "local",
        1,
        world -> {
          final Reducer reducer = reducer(world);
          reducer.setHook(
              CommHook.of(
                  "late",
                  (bucket, group) -> {
                    throw (DistException) DistException.of(2, "too late".getBytes());
                  }));
          final DistTimeoutException thrown =
              assertThrows(DistTimeoutException.class, () -> step(reducer, 1));
          assertTrue(thrown.getMessage().contains("rank 0: too late"), thrown.getMessage());
        });
  }

  @Test
  void theRanksOfAnExceptionStay() throws Exception {
    Ranks.run(
        "local",
        1,
        world -> {
          final Reducer reducer = reducer(world);
          reducer.setHook(
              CommHook.of(
                  "late",
                  (bucket, group) -> {
                    throw (DistException)
                        DistException.of(2, "too late".getBytes(), new int[] {0}, null, 0);
                  }));
          final DistException thrown = assertThrows(DistException.class, () -> step(reducer, 1));
          assertTrue(thrown.getMessage().contains("rank 0: too late"), thrown.getMessage());
          assertEquals(List.of(0), thrown.ranks());
        });
  }

  @Test
  void handlesOfACallEndWithIt() throws Exception {
    Ranks.run(
        "local",
        1,
        world -> {
          final GradBucket[] kept = new GradBucket[1];
          final ProcessGroup[] group = new ProcessGroup[1];
          try (Reducer reducer = reducer(world)) {
            reducer.setHook(
                CommHook.of(
                    "keeping",
                    (bucket, groupOfCall) -> {
                      kept[0] = bucket;
                      group[0] = groupOfCall;
                    }));
            assertEquals(5, step(reducer, 5));
            assertEquals(6, step(reducer, 6), "the group must outlive its handle");
          }
          assertThrows(IllegalStateException.class, () -> kept[0].index());
          assertThrows(IllegalStateException.class, () -> group[0].size());
        });
  }

  @Test
  void badArgumentsAreNamed() {
    final var noName =
        assertThrows(NullPointerException.class, () -> CommHook.of(null, (b, g) -> {}));
    assertTrue(noName.getMessage().contains("name"));
    final var none = assertThrows(NullPointerException.class, () -> CommHook.of("a", null));
    assertTrue(none.getMessage().contains("averager"));
  }
}
