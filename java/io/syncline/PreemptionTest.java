package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.time.Duration;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

/** All ranks stop at the same step. */
class PreemptionTest {
  @Test
  void allRanksStopAtTheStepOnWhichTheyAgree() throws Exception {
    for (int size : new int[] {1, 2, 3}) {
      stopAtTheSameStep(size);
    }
  }

  private static void stopAtTheSameStep(int size) throws Exception {
    final long[] stops = new long[size];
    Ranks.run(
        "local",
        size,
        world -> {
          try (Preemption preemption =
              Preemption.create(world.store(), world.rank(), world.size(), Ranks.TIMEOUT)) {
            long step = 0;
            for (; !preemption.reached(step); step++) {
              if (step == 20 && world.rank() == size - 1) {
                preemption.giveNotice();
              }
              world.group().barrier();
            }
            assertEquals(step, preemption.agreedStep());
            stops[world.rank()] = step;
          }
        });
    assertTrue(stops[0] > 20);
    assertTrue(Arrays.stream(stops).allMatch(stop -> stop == stops[0]), Arrays.toString(stops));
  }

  @Test
  void aRankThatTakesNoPartIsNamed() {
    try (HashStore store = HashStore.create();
        Preemption preemption = Preemption.create(store, 0, 2, Duration.ofMillis(200))) {
      preemption.giveNotice();
      final DistTimeoutException error =
          assertThrows(
              DistTimeoutException.class,
              () -> {
                for (long step = 0; ; step++) {
                  preemption.reached(step);
                }
              });
      assertTrue(error.getMessage().contains("rank 1 of 2"), error.getMessage());
    }
  }

  @Test
  void anInterruptEndsTheWaitForTheOthers() throws Exception {
    try (HashStore store = HashStore.create();
        Preemption preemption = Preemption.create(store, 0, 2, Ranks.TIMEOUT)) {
      preemption.giveNotice();
      Thread.currentThread().interrupt();
      assertThrows(
          DistInterruptedException.class,
          () -> {
            for (long step = 0; ; step++) {
              preemption.reached(step);
            }
          });
      assertTrue(Thread.interrupted());
    }
  }
}
