package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class MemoryPressureTest {
  private int collections;
  private final MemoryPressure pressure = new MemoryPressure(100, () -> collections++);

  @Test
  void whatIsFreedInTimeNeedsNoCollection() {
    for (int i = 0; i < 1000; i++) {
      pressure.allocated(60);
      pressure.freed(60);
    }
    assertEquals(0, collections);
  }

  @Test
  void whatIsForgottenIsCollectedEachTimeTheBoundIsReached() {
    for (int round = 1; round <= 5; round++) {
      for (int i = 0; i < 10; i++) {
        pressure.allocated(10);
      }
      assertEquals(round, collections);
      pressure.freed(100); // As by the Cleaner, some time after the collection.
    }
  }

  @Test
  void whatIsReallyInUseIsCollectedInVainEverMoreRarely() {
    for (int i = 0; i < 1000; i++) {
      pressure.allocated(100);
    }
    assertEquals(10, collections); // At 100, 200, 400 and so on to 51200.
  }

  @Test
  void onceMuchIsFreedTheBoundIsTheFirstAgain() {
    pressure.allocated(100_000);
    pressure.freed(100_000);
    pressure.allocated(99);
    assertEquals(1, collections);
    pressure.allocated(1);
    assertEquals(2, collections);
  }
}
