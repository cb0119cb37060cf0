package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.syncline.testing.Ranks;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * The bridge of docs/java-training.md, from the calls of a parameter server to a reducer; with
 * float[] for DJL's NDArray.
 */
class ParameterServerTest {
  /** The shape of ai.djl.training.ParameterServer: a value for each of this process's devices. */
  interface ParameterServer extends AutoCloseable {
    void init(String parameterId, float[][] value);

    void push(String parameterId, float[][] gradients, int priority);

    void pull(String parameterId, float[][] weights, int priority);

    @Override
    void close();
  }

  /** What becomes of a weight and its average gradient: DJL's Optimizer.update. */
  interface Optimizer {
    void update(String parameterId, float[] weight, float[] gradient);
  }

  /** Pushes are gradients that are ready; the first pull of a step is its end. */
  static final class ReducerParameterServer implements ParameterServer {
    private final ProcessGroup group;
    private final Optimizer optimizer;
    private final Map<String, Integer> indices = new LinkedHashMap<>();
    private final List<Tensor> parameters = new ArrayList<>();
    private GradientReducer reducer; // From the first push on: then all parameters are known.
    private boolean averaged;

    ReducerParameterServer(ProcessGroup group, Optimizer optimizer) {
      this.group = group;
      this.optimizer = optimizer;
    }

    @Override
    public void init(String parameterId, float[][] value) {
      group.broadcast(value[0], 0); // All begin with rank 0's.
      indices.put(parameterId, indices.size());
      parameters.add(Tensor.allocate(DType.FLOAT32, value[0].length));
    }

    @Override
    public void push(String parameterId, float[][] gradients, int priority) {
      if (reducer == null) {
        reducer =
            GradientReducer.builder(group, parameters)
                .names(List.copyOf(indices.keySet()))
                .build();
      }
      final float[] sum = gradients[0].clone();
      for (int device = 1; device < gradients.length; device++) {
        for (int i = 0; i < sum.length; i++) {
          sum[i] += gradients[device][i];
        }
      }
      averaged = false;
      reducer.ready(indices.get(parameterId), sum); // Its bucket may leave now.
    }

    @Override
    public void pull(String parameterId, float[][] weights, int priority) {
      if (!averaged) {
        reducer.finish();
        averaged = true;
      }
      final float[] gradient = new float[weights[0].length];
      reducer.floats(indices.get(parameterId)).get(gradient);
      for (float[] weight : weights) {
        optimizer.update(parameterId, weight, gradient);
      }
    }

    @Override
    public void close() {
      if (reducer != null) {
        reducer.close();
      }
    }
  }

  /** One step of DJL's trainer: pushes, last layer first, then pulls. */
  private static void step(
      ParameterServer server, Map<String, float[]> weights, Map<String, float[]> gradients) {
    final List<String> ids = new ArrayList<>(weights.keySet());
    for (int i = ids.size() - 1; i >= 0; i--) {
      server.push(ids.get(i), new float[][] {gradients.get(ids.get(i))}, -i);
    }
    for (String id : ids) {
      server.pull(id, new float[][] {weights.get(id)}, 0);
    }
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3})
  void aParameterServerIsAReducerThatIsPushedAndPulled(int size) throws Exception {
    Ranks.run("local", size, world -> {
      final Optimizer descent =
          (id, weight, gradient) -> {
            for (int i = 0; i < weight.length; i++) {
              weight[i] -= 0.1f * gradient[i];
            }
          };
      try (ReducerParameterServer server =
          new ReducerParameterServer(world.group(), descent)) {
        // Least squares: each rank pulls towards its own number, all together to their mean.
        final Map<String, float[]> weights = new LinkedHashMap<>();
        weights.put("weight", new float[] {world.rank(), 5, 6});
        weights.put("bias", new float[] {world.rank()});
        weights.forEach((id, value) -> server.init(id, new float[][] {value}));
        assertEquals(0, weights.get("bias")[0], "rank 0's");
        for (int step = 0; step < 100; step++) {
          final Map<String, float[]> gradients = new LinkedHashMap<>();
          weights.forEach(
              (id, weight) -> {
                final float[] gradient = weight.clone();
                for (int i = 0; i < gradient.length; i++) {
                  gradient[i] -= world.rank();
                }
                gradients.put(id, gradient);
              });
          step(server, weights, gradients);
        }
        final float mean = (size - 1) / 2f;
        assertArrayEquals(new float[] {mean, mean, mean}, weights.get("weight"), 1e-3f);
        assertArrayEquals(new float[] {mean}, weights.get("bias"), 1e-3f);
      }
    });
  }
}
