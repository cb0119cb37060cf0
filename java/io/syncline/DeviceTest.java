package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.FloatBuffer;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Tensors on devices, which are simulated: any memory of the host serves as theirs. */
class DeviceTest {
  private static final int COUNT = 10_000;

  /** What is on a device, and how the host sees it. */
  private record Shown(Tensor onDevice, Tensor host) {
    static Shown of(float value, int device) {
      final Tensor host = Tensor.allocate(DType.FLOAT32, COUNT);
      final FloatBuffer elements = host.asFloatBuffer();
      for (int i = 0; i < COUNT; i++) {
        elements.put(i, value);
      }
      return new Shown(
          Tensor.ofDevice(host.address, DType.FLOAT32, new long[] {COUNT}, device), host);
    }

    void expect(float value) {
      final FloatBuffer elements = host.asFloatBuffer();
      for (int i = 0; i < COUNT; i++) {
        assertEquals(value, elements.get(i));
      }
    }
  }

  @Test
  void ranksReduceTensorsOfDevices() throws Exception {
    Ranks.run(
        "local",
        3,
        world -> {
          final Shown tensor = Shown.of(world.rank() + 1, world.rank() % 2);
          final WorkFuture future = world.group().allReduceAsync(tensor.onDevice());
          future.work().synchronize(Ranks.TIMEOUT);
          assertTrue(future.work().isCompleted());
          tensor.expect(6);
          future.get(60, TimeUnit.SECONDS);
        });
  }

  @Test
  @SuppressWarnings("try") // What is closed need not be used.
  void aFutureCompletesWhenTheHostMayReadTheResult() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final Shown tensor = Shown.of(world.rank() + 1, 0);
          try (Streams ignored = Streams.current(0)) {
            world.group().allReduceAsync(tensor.onDevice()).get(60, TimeUnit.SECONDS);
          }
          tensor.expect(3);
          assertFalse(tensor.onDevice().isReadOnly());
        });
  }

  @Test
  void aReducerAveragesGradientsOfDevices() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final Tensor gradient = Shown.of(world.rank() + 1, world.rank()).onDevice();
          try (GradientReducer reducer =
              GradientReducer.create(
                  world.group(), java.util.List.of(gradient, gradient))) {
            for (int step = 0; step < 2; step++) {
              reducer.ready(1, gradient);
              reducer.ready(0, gradient);
              reducer.finish();
              final Shown first = Shown.of(0, world.rank());
              final Shown second = Shown.of(0, world.rank());
              world
                  .group()
                  .allGatherAsync(
                      java.util.List.of(first.onDevice(), second.onDevice()), reducer.gradient(0))
                  .get(60, TimeUnit.SECONDS);
              first.expect(1.5f);
              second.expect(1.5f);
            }
          }
        });
  }

  @Test
  void severalTensorsGoTogether() throws Exception {
    Ranks.run(
        "local",
        2,
        world -> {
          final Shown first = Shown.of(1, 1);
          final Shown second = Shown.of(2, 1);
          world
              .group()
              .allReduceCoalescedAsync(java.util.List.of(first.onDevice(), second.onDevice()))
              .get(60, TimeUnit.SECONDS);
          first.expect(2);
          second.expect(4);
        });
  }
}
