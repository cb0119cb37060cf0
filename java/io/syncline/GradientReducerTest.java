package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class GradientReducerTest {
  private static final int[] SIZES = {12, 4, 8, 1, 1000};
  private static final List<String> NAMES = List.of("w1", "b1", "w2", "b2", "big");

  private static List<Tensor> parameters() {
    final List<Tensor> parameters = new ArrayList<>();
    for (int size : SIZES) {
      parameters.add(Tensor.allocate(DType.FLOAT32, size));
    }
    return parameters;
  }

  private static float[] filled(int index, float value) {
    final float[] result = new float[SIZES[index]];
    Arrays.fill(result, value);
    return result;
  }

  private static float[] average(GradientReducer reducer, int index) {
    final FloatBuffer buffer = reducer.floats(index);
    final float[] result = new float[buffer.remaining()];
    buffer.get(result);
    return result;
  }

  /** A step with gradients that are all {@code value}; without those of {@code left}. */
  private static void step(GradientReducer reducer, float value, Integer... left) {
    for (int i = SIZES.length - 1; i >= 0; i--) {
      if (!Arrays.asList(left).contains(i)) {
        reducer.ready(i, filled(i, value));
      }
    }
    reducer.finish();
  }

  private static void expectAll(GradientReducer reducer, float expected) {
    for (int i = 0; i < SIZES.length; i++) {
      assertArrayEquals(filled(i, expected), average(reducer, i), 1e-6f);
    }
  }

  @ParameterizedTest
  @CsvSource({"1, local", "2, local", "3, local", "7, local", "2, gloo"})
  void theAverageIsThatOfAllRanks(int size, String backend) throws Exception {
    Ranks.run(backend, size, world -> {
      try (ProcessGroup group = world.group();
          GradientReducer reducer =
              GradientReducer.builder(group, parameters())
                  .firstBucketCapBytes(20)
                  .bucketCapBytes(20)
                  .build()) {
        for (int step = 0; step < 3; step++) {
          for (int i = SIZES.length - 1; i >= 0; i--) {
            switch (i % 3) {
              case 0 -> reducer.floats(i).put(filled(i, i + world.rank()));
              case 1 -> reducer.gradient(i).asFloatBuffer().put(filled(i, i + world.rank()));
              default -> { }
            }
            if (i % 3 == 2) {
              reducer.ready(i, Tensor.of(direct(filled(i, i + world.rank()))));
            } else {
              reducer.ready(i);
            }
          }
          reducer.finish();
          for (int i = 0; i < SIZES.length; i++) {
            final float expected = i + (size - 1) / 2f;
            assertArrayEquals(filled(i, expected), average(reducer, i), 1e-5f);
          }
        }
        assertEquals(SIZES.length, Arrays.stream(reducer.buckets()).mapToInt(b -> b.length).sum());
      }
    });
  }

  private static FloatBuffer direct(float[] values) {
    final FloatBuffer buffer = Tensor.allocate(DType.FLOAT32, values.length).asFloatBuffer();
    buffer.put(0, values);
    return buffer;
  }

  @Test
  void placesFollowTheBucketsWhichFollowRankZero() throws Exception {
    Ranks.run("local", 2, world -> {
      try (GradientReducer reducer =
          GradientReducer.builder(world.group(), parameters())
              .bucketCapsBytes(20, 20)
              .build()) {
        final Tensor before = reducer.gradient(0);
        for (int i : world.rank() == 0 ? new int[] {2, 0, 4, 1, 3} : new int[] {4, 3, 2, 1, 0}) {
          reducer.ready(i, filled(i, i + world.rank()));
        }
        reducer.finish();
        assertNotEquals(before.address, reducer.gradient(0).address);
        final int[] order = Arrays.stream(reducer.buckets()).flatMapToInt(Arrays::stream).toArray();
        assertArrayEquals(new int[] {2, 0, 4, 1, 3}, order);
        for (int i = 0; i < SIZES.length; i++) {
          assertArrayEquals(filled(i, i + 0.5f), average(reducer, i));
        }
        step(reducer, world.rank());
        expectAll(reducer, 0.5f);
      }
    });
  }

  @Test
  void allRanksLearnWhoLacksWhichGradientAndTheNextStepIsAsGoodAsEver() throws Exception {
    Ranks.run("local", 2, world -> {
      try (GradientReducer reducer =
          GradientReducer.builder(world.group(), parameters()).names(NAMES).build()) {
        final Integer[] left = world.rank() == 1 ? new Integer[] {1} : new Integer[0];
        final var error =
            assertThrows(IllegalArgumentException.class, () -> step(reducer, 1, left));
        assertTrue(error.getMessage().matches("(?s).*rank 1 .*b1.*"), error.getMessage());
        step(reducer, world.rank());
        expectAll(reducer, 0.5f);
      }
    });
  }

  @Test
  void differentParametersAreAnErrorThatNamesTheFirst() throws Exception {
    Ranks.run("local", 2, world -> {
      final List<Tensor> parameters = parameters();
      if (world.rank() == 1) {
        parameters.set(2, Tensor.allocate(DType.FLOAT32, 9));
      }
      final var error =
          assertThrows(
              DistMismatchException.class,
              () -> GradientReducer.builder(world.group(), parameters).names(NAMES).build());
      assertTrue(error.getMessage().contains("w2"), error.getMessage());
    });
  }

  @Test
  void unusedParametersAreFoundOrRecorded() throws Exception {
    Ranks.run("local", 2, world -> {
      try (GradientReducer reducer =
              GradientReducer.builder(world.group(), parameters()).findUnusedParameters().build();
          GradientReducer same =
              GradientReducer.builder(world.group(), parameters()).staticGraph().build()) {
        for (int i = 0; i < 2; i++) {
          step(reducer, 1, world.rank() == 0 ? new Integer[] {1, 3} : new Integer[] {1});
          assertFalse(reducer.isUsed(1));
          assertTrue(reducer.isUsed(3));
          assertArrayEquals(filled(1, 0), average(reducer, 1));
          assertArrayEquals(filled(3, 0.5f), average(reducer, 3));
          step(same, 1, 2);
          assertArrayEquals(filled(2, 0), average(same, 2));
        }
        assertThrows(IllegalArgumentException.class, () -> step(same, 1));
      }
    });
  }

  @Test
  void stepsWithoutSynchronisationArePartOfTheNextOneWithIt() throws Exception {
    Ranks.run("local", 3, world -> {
      try (GradientReducer reducer = GradientReducer.create(world.group(), parameters())) {
        for (int i = 0; i < 2; i++) {
          reducer.noSync(() -> {
            step(reducer, world.rank());
            step(reducer, 10);
          });
          expectAll(reducer, world.rank() + 10);
          step(reducer, world.rank());
          expectAll(reducer, 12);
        }
      }
    });
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void ranksMayHaveDifferentNumbersOfSteps(boolean byActive) throws Exception {
    final int[] counts = {0, 2, 5};
    final var options =
        byActive
            ? new GradientReducer.Join[] {GradientReducer.Join.DIVIDE_BY_ACTIVE_RANKS}
            : new GradientReducer.Join[0];
    Ranks.run("local", 3, world -> {
      try (GradientReducer reducer =
          GradientReducer.builder(world.group(), parameters()).keepBuckets().build()) {
        reducer.join(
            () -> {
              for (int i = 0; i < counts[world.rank()]; i++) {
                step(reducer, 3);
                expectAll(reducer, byActive ? 3 : i < 2 ? 2 : 1);
              }
            },
            options);
        step(reducer, world.rank());
        expectAll(reducer, 1);
        assertThrows(
            IllegalStateException.class, () -> reducer.join(() -> reducer.join(() -> {})));
      }
    });
  }

  @Test
  void anEarlyEndIsAnErrorOnAllRanksIfItShallBe() throws Exception {
    Ranks.run("local", 3, world -> {
      try (GradientReducer reducer = GradientReducer.create(world.group(), parameters())) {
        final Runnable steps = () -> {
          for (int i = 0; i < (world.rank() == 1 ? 1 : 3); i++) {
            step(reducer, 1);
          }
        };
        final var error =
            assertThrows(
                DistException.class,
                () -> reducer.join(steps, GradientReducer.Join.THROW_ON_EARLY_TERMINATION));
        assertTrue(error.getMessage().startsWith("rank 1 has no more input"), error.getMessage());
      }
    });
  }

  @Test
  void aFinishThatIsRefusedLeavesTheStepToTheOneUnderWay() throws Exception {
    Ranks.run("local", 2, world -> {
      try (GradientReducer reducer = GradientReducer.create(world.group(), parameters())) {
        if (world.rank() == 1) {
          world.store().get("refused", Ranks.TIMEOUT); // Till then rank 0 cannot finish.
          step(reducer, 1);
        } else {
          for (int i = 0; i < SIZES.length; i++) {
            reducer.ready(i, filled(i, 0));
          }
          finishInTwoThreads(reducer, () -> world.store().set("refused", new byte[0]));
        }
        expectAll(reducer, 0.5f);
        reducer.noSync(() -> step(reducer, world.rank()));
        expectAll(reducer, world.rank());
        step(reducer, 1);
        expectAll(reducer, 1.5f);
      }
    });
  }

  /** One of them finishes; the other is refused, twice, and then calls {@code afterwards}. */
  private static void finishInTwoThreads(GradientReducer reducer, Runnable afterwards)
      throws Exception {
    final ExecutorService threads = Executors.newFixedThreadPool(2);
    try {
      final Callable<String> finish =
          () -> {
            try {
              reducer.finish();
              return "";
            } catch (IllegalArgumentException first) {
              final var second =
                  assertThrows(IllegalArgumentException.class, () -> reducer.finish());
              afterwards.run();
              return first.getMessage() + "; " + second.getMessage();
            }
          };
      final List<String> refusals = new ArrayList<>();
      for (Future<String> each : threads.invokeAll(List.of(finish, finish))) {
        refusals.add(each.get(60, TimeUnit.SECONDS));
      }
      assertTrue(refusals.contains(""), refusals.toString());
      final String under = "finish is under way in another thread";
      assertTrue(refusals.contains(under + "; " + under), refusals.toString());
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  void sparseGradientsAreAllRanksRows() throws Exception {
    Ranks.run("local", 3, world -> {
      final List<Tensor> parameters =
          List.of(Tensor.allocate(DType.FLOAT32, 10, 3), Tensor.allocate(DType.FLOAT32, 4));
      try (GradientReducer reducer =
          GradientReducer.builder(world.group(), parameters).sparse(0).build()) {
        final Tensor indices = Tensor.allocate(DType.INT64, world.rank());
        final Tensor values = Tensor.allocate(DType.FLOAT32, world.rank(), 3);
        for (int i = 0; i < world.rank(); i++) {
          indices.asLongBuffer().put(i, i);
          values.asFloatBuffer().put(3 * i, 3);
        }
        reducer.ready(1, new float[4]);
        reducer.readyRows(0, indices, values);
        reducer.finish();
        final long[] rows = new long[3];
        reducer.rowIndices(0).asLongBuffer().get(rows);
        assertArrayEquals(new long[] {0, 0, 1}, rows);
        assertArrayEquals(new long[] {3, 3}, reducer.rowValues(0).shape());
        assertEquals(1, reducer.rowValues(0).asFloatBuffer().get(0));
      }
    });
  }

  @Test
  void afterAFailureTrainingGoesOnInAnotherGroup() throws Exception {
    Ranks.run("local", 2, world -> {
      final ProcessGroup first = world.newGroup(new int[] {0, 1});
      try (GradientReducer reducer = GradientReducer.create(first, parameters())) {
        step(reducer, 1);
        reducer.ready(4, filled(4, 1));
        first.abort("as if a rank had died");
        assertThrows(DistException.class, () -> step(reducer, 1, 4));
        reducer.replaceGroup(world.group());
        step(reducer, world.rank());
        expectAll(reducer, 0.5f);
      }
    });
  }

  @Test
  void aHookAveragesInItsOwnWayAndStatisticsNameIt() throws Exception {
    Ranks.run("local", 2, world -> {
      try (GradientReducer reducer =
          GradientReducer.builder(world.group(), parameters())
              .hook(CommHook.float16Compress())
              .build()) {
        step(reducer, 1e-9f);
        expectAll(reducer, 0); // Too small for float16.
        try (ReducerStats stats = reducer.stats()) {
          assertEquals("float16_compress", stats.hook());
          assertTrue(stats.table().lines().count() > 1, stats.table());
        }
        reducer.setHook(null);
        step(reducer, 1);
        expectAll(reducer, 1);
      }
    });
  }

  @Test
  void aBadIndexAndAnotherTypeAreSaid() throws Exception {
    try (World world = World.init("local")) {
      final GradientReducer reducer =
          GradientReducer.create(world.group(), List.of(Tensor.allocate(DType.FLOAT64, 2)));
      for (int index : new int[] {-1, 1}) {
        final var error =
            assertThrows(IllegalArgumentException.class, () -> reducer.gradient(index));
        assertTrue(error.getMessage().contains("no parameter " + index), error.getMessage());
      }
      assertThrows(IllegalArgumentException.class, () -> reducer.floats(0));
      assertEquals("float64[2]", reducer.gradient(0).toString());
      reducer.close();
      reducer.close();
      assertThrows(IllegalStateException.class, () -> reducer.ready(0));
    }
  }
}
