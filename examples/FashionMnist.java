import io.syncline.DType;
import io.syncline.GradientReducer;
import io.syncline.ProcessGroup;
import io.syncline.Tensor;
import io.syncline.World;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.zip.GZIPInputStream;

/**
 * Data-parallel training in plain Java: a perceptron on Fashion-MNIST.
 *
 * <pre>
 * ./bazelw build //examples:fashion_mnist_java
 * ./bazelw run //launch:run -- --standalone --nproc-per-node=2 --no-python \
 *     bazel-bin/examples/fashion_mnist_java --epochs=5
 * </pre>
 *
 * The backward pass writes each gradient to its place in the reducer's buckets and says so: the
 * gradients of a layer travel while those of the layer before are still being computed. Options:
 * --epochs, --batch-size (over all processes), --learning-rate, --limit (of training images),
 * --data (the folder of the four .gz files; //launch:run brings them).
 */
public final class FashionMnist {
  private static final int[] WIDTHS = {784, 256, 128, 10};
  private static final int LAYERS = 3;
  private static final int PIXELS = 784;
  private static final int CLASSES = 10;
  private static final float PIXEL_MEAN = 72.94f; // Of the training images.
  private static final float MOMENTUM = 0.9f;

  private FashionMnist() {}

  public static void main(String[] args) throws IOException {
    final Options options = Options.parse(args);
    final Images train = Images.load(options.data, "train", options.limit);
    final Images test = Images.load(options.data, "t10k", 10_000);
    try (World world = World.init(); // As the launcher's environment says.
        ProcessGroup group = world.group()) {
      final Perceptron model = new Perceptron();
      for (float[] parameter : model.parameters) {
        group.broadcast(parameter, 0);
      }
      try (GradientReducer reducer =
          GradientReducer.builder(group, model.shapes())
              .names(model.names())
              .firstBucketCapBytes(100 << 10)
              .bucketCapBytes(500 << 10)
              .build()) {
        for (int epoch = 1; epoch <= options.epochs; epoch++) {
          final long began = System.nanoTime();
          final double loss = trainEpoch(group, model, reducer, train, epoch, options);
          final double seconds = (System.nanoTime() - began) / 1e9;
          final double accuracy = accuracy(group, model, test);
          if (group.rank() == 0) {
            System.out.printf(
                "epoch %d: loss %.6f, test accuracy %.2f%%, %.1f s%n",
                epoch, loss, 100 * accuracy, seconds);
          }
        }
        checkEqualWeights(group, model);
        if (group.rank() == 0) {
          System.out.print(reducer.stats().table());
          System.out.println("weights bitwise equal on all " + group.size() + " ranks");
        }
      }
    }
  }

  /** One pass over the images in an order of its own; the mean loss over all ranks. */
  private static double trainEpoch(
      ProcessGroup group,
      Perceptron model,
      GradientReducer reducer,
      Images images,
      int epoch,
      Options options) {
    final int[] order = permutation(images.labels.length, epoch);
    final int steps = order.length / options.batchSize;
    // The reducer averages over ranks; what is wanted is the sum over the batch by its size.
    final float scale = (float) group.size() / options.batchSize;
    double loss = 0;
    for (int step = 0; step < steps; step++) {
      final int[] part = new int[countFor(group, options.batchSize)];
      for (int i = 0; i < part.length; i++) {
        part[i] = order[step * options.batchSize + group.rank() + i * group.size()];
      }
      final Images batch = images.pick(part);
      loss += model.forward(batch).loss;
      model.backward(batch, scale, reducer);
      reducer.finish();
      final double done = epoch - 1 + (double) step / steps;
      model.step(reducer, (float) (options.learningRate * (1 - done / options.epochs)));
    }
    final double[] total = {loss};
    group.allReduce(total);
    return total[0] / Math.max(1, steps * options.batchSize);
  }

  /** The share of images that the model knows; each rank looks at its part of them. */
  private static double accuracy(ProcessGroup group, Perceptron model, Images images) {
    final int[] part = new int[countFor(group, images.labels.length)];
    for (int i = 0; i < part.length; i++) {
      part[i] = group.rank() + i * group.size();
    }
    final long[] correct = {model.forward(images.pick(part)).correct};
    group.allReduce(correct);
    return (double) correct[0] / images.labels.length;
  }

  private static void checkEqualWeights(ProcessGroup group, Perceptron model) {
    final long[] differing = {0};
    for (float[] parameter : model.parameters) {
      final float[] first = parameter.clone();
      group.broadcast(first, 0);
      for (int i = 0; i < first.length; i++) {
        final boolean same =
            Float.floatToRawIntBits(first[i]) == Float.floatToRawIntBits(parameter[i]);
        differing[0] += same ? 0 : 1;
      }
    }
    group.allReduce(differing);
    if (differing[0] > 0) {
      throw new IllegalStateException(differing[0] + " weights differ from those of rank 0");
    }
  }

  /** How many of `total` things are this rank's, if it takes every size-th. */
  private static int countFor(ProcessGroup group, int total) {
    return (total - group.rank() + group.size() - 1) / group.size();
  }

  private static int[] permutation(int count, int seed) {
    final Random random = new Random(seed);
    final int[] order = new int[count];
    for (int i = 0; i < count; i++) {
      final int j = random.nextInt(i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    return order;
  }

  /** What is said on the command line. */
  private record Options(int epochs, int batchSize, double learningRate, int limit, Path data) {
    static Options parse(String[] args) throws IOException {
      final Map<String, String> given = new HashMap<>();
      for (String arg : args) {
        final String[] parts = arg.split("=", 2);
        if (!List.of("--epochs", "--batch-size", "--learning-rate", "--limit", "--data")
                .contains(parts[0])
            || parts.length < 2) {
          throw new IllegalArgumentException("unknown option " + arg + "; write --epochs=5");
        }
        given.put(parts[0], parts[1]);
      }
      final String data = given.get("--data");
      return new Options(
          Integer.parseInt(given.getOrDefault("--epochs", "5")),
          Integer.parseInt(given.getOrDefault("--batch-size", "240")),
          Double.parseDouble(given.getOrDefault("--learning-rate", "0.05")),
          Integer.parseInt(given.getOrDefault("--limit", "60000")),
          data == null ? findData() : Path.of(data));
    }

    /** The folder among the files that Bazel hands to //launch:run. */
    private static Path findData() throws IOException {
      final String root = System.getenv().getOrDefault("SYNCLINE_RUNFILES", ".");
      try (var files = Files.walk(Path.of(root, "fashion_mnist"))) {
        return files
            .filter(file -> file.endsWith("train-images-idx3-ubyte.gz"))
            .findFirst()
            .orElseThrow(() -> new IOException("no Fashion-MNIST in " + root + ": pass --data="))
            .getParent();
      }
    }
  }

  /** Images, [n, 784] of mean 0, and their labels. */
  private record Images(float[] pixels, byte[] labels) {
    static Images load(Path folder, String split, int limit) throws IOException {
      final byte[] bytes = read(folder, split + "-images-idx3-ubyte.gz", 16, limit * PIXELS);
      final float[] pixels = new float[bytes.length];
      for (int i = 0; i < pixels.length; i++) {
        pixels[i] = (Byte.toUnsignedInt(bytes[i]) - PIXEL_MEAN) / 255;
      }
      return new Images(pixels, read(folder, split + "-labels-idx1-ubyte.gz", 8, limit));
    }

    private static byte[] read(Path folder, String name, int header, int limit)
        throws IOException {
      try (var file =
          new DataInputStream(
              new GZIPInputStream(Files.newInputStream(folder.resolve(name)), 1 << 16))) {
        file.skipNBytes(header);
        return file.readNBytes(limit);
      }
    }

    Images pick(int[] part) {
      final Images picked = new Images(new float[part.length * PIXELS], new byte[part.length]);
      for (int i = 0; i < part.length; i++) {
        System.arraycopy(pixels, part[i] * PIXELS, picked.pixels, i * PIXELS, PIXELS);
        picked.labels[i] = labels[part[i]];
      }
      return picked;
    }
  }

  /** How well the model did: the loss summed over images, and how many it knew. */
  private record Evaluation(double loss, long correct) {}

  /** ReLU between the layers, softmax cross-entropy after the last. */
  private static final class Perceptron {
    final List<float[]> parameters = new ArrayList<>(); // Weight, bias, weight, bias, ...
    private final List<float[]> velocity = new ArrayList<>();
    private final float[][] activations = new float[LAYERS + 1][]; // What each layer is given.

    Perceptron() {
      final Random random = new Random(1);
      for (int layer = 0; layer < LAYERS; layer++) {
        final float[] weight = new float[WIDTHS[layer] * WIDTHS[layer + 1]];
        for (int i = 0; i < weight.length; i++) {
          weight[i] = (float) (random.nextGaussian() * Math.sqrt(2.0 / WIDTHS[layer]));
        }
        parameters.add(weight);
        parameters.add(new float[WIDTHS[layer + 1]]);
      }
      parameters.forEach(parameter -> velocity.add(new float[parameter.length]));
    }

    /** Tensors of the parameters' types and shapes, for the reducer. */
    List<Tensor> shapes() {
      final List<Tensor> shapes = new ArrayList<>();
      for (int layer = 0; layer < LAYERS; layer++) {
        shapes.add(Tensor.allocate(DType.FLOAT32, WIDTHS[layer], WIDTHS[layer + 1]));
        shapes.add(Tensor.allocate(DType.FLOAT32, WIDTHS[layer + 1]));
      }
      return shapes;
    }

    List<String> names() {
      final List<String> names = new ArrayList<>();
      for (int layer = 0; layer < LAYERS; layer++) {
        names.addAll(List.of("layer" + layer + ".weight", "layer" + layer + ".bias"));
      }
      return names;
    }

    /** Keeps the activations for backward. */
    Evaluation forward(Images images) {
      final int count = images.labels.length;
      activations[0] = images.pixels;
      for (int layer = 0; layer < LAYERS; layer++) {
        final int out = WIDTHS[layer + 1];
        final float[] bias = parameters.get(2 * layer + 1);
        final float[] z = new float[count * out];
        for (int i = 0; i < count; i++) {
          System.arraycopy(bias, 0, z, i * out, out);
        }
        addProduct(activations[layer], parameters.get(2 * layer), z, count, WIDTHS[layer], out);
        if (layer + 1 < LAYERS) {
          for (int i = 0; i < z.length; i++) {
            z[i] = Math.max(z[i], 0);
          }
        }
        activations[layer + 1] = z;
      }
      return softmax(activations[LAYERS], images.labels);
    }

    /** Turns rows of logits into probabilities. */
    private static Evaluation softmax(float[] rows, byte[] labels) {
      double loss = 0;
      long correct = 0;
      for (int i = 0; i < labels.length; i++) {
        final int row = i * CLASSES;
        int best = row;
        for (int j = row; j < row + CLASSES; j++) {
          best = rows[j] > rows[best] ? j : best;
        }
        correct += best - row == labels[i] ? 1 : 0;
        final float largest = rows[best];
        float sum = 0;
        for (int j = row; j < row + CLASSES; j++) {
          rows[j] = (float) Math.exp(rows[j] - largest);
          sum += rows[j];
        }
        for (int j = row; j < row + CLASSES; j++) {
          rows[j] /= sum;
        }
        loss -= Math.log(rows[row + labels[i]] + 1e-12);
      }
      return new Evaluation(loss, correct);
    }

    /** Hands the gradients of scale * summed loss to the reducer, those of the last layer first. */
    void backward(Images images, float scale, GradientReducer reducer) {
      final int count = images.labels.length;
      float[] delta = activations[LAYERS].clone(); // Of the softmax.
      for (int i = 0; i < count; i++) {
        delta[i * CLASSES + images.labels[i]] -= 1;
      }
      for (int i = 0; i < delta.length; i++) {
        delta[i] *= scale;
      }
      for (int layer = LAYERS - 1; layer >= 0; layer--) {
        final int in = WIDTHS[layer];
        final int out = WIDTHS[layer + 1];
        final float[] bias = new float[out];
        for (int i = 0; i < delta.length; i++) {
          bias[i % out] += delta[i];
        }
        reducer.floats(2 * layer + 1).put(0, bias);
        reducer.ready(2 * layer + 1);

        final float[] weight = new float[in * out];
        addProduct(transposed(activations[layer], count, in), delta, weight, in, count, out);
        reducer.floats(2 * layer).put(0, weight);
        reducer.ready(2 * layer);
        if (layer == 0) {
          break;
        }
        final float[] before = new float[count * in];
        addProduct(
            delta, transposed(parameters.get(2 * layer), in, out), before, count, out, in);
        for (int i = 0; i < before.length; i++) {
          before[i] = activations[layer][i] > 0 ? before[i] : 0;
        }
        delta = before;
      }
    }

    /** Stochastic gradient descent with momentum, by what the reducer has averaged. */
    void step(GradientReducer reducer, float rate) {
      for (int i = 0; i < parameters.size(); i++) {
        final FloatBuffer average = reducer.floats(i);
        final float[] gradient = new float[average.remaining()];
        average.get(0, gradient);
        final float[] parameter = parameters.get(i);
        final float[] speed = velocity.get(i);
        for (int j = 0; j < gradient.length; j++) {
          speed[j] = MOMENTUM * speed[j] + gradient[j];
          parameter[j] -= rate * speed[j];
        }
      }
    }

    // Matrices are row-major; the inner loops are such that the JVM vectorises them.

    /** c[m, n] += a[m, k] * b[k, n]. */
    private static void addProduct(float[] a, float[] b, float[] c, int m, int k, int n) {
      final float[] row = new float[n];
      for (int i = 0; i < m; i++) {
        System.arraycopy(c, i * n, row, 0, n);
        for (int p = 0; p < k; p++) {
          addScaled(row, a[i * k + p], b, p * n);
        }
        System.arraycopy(row, 0, c, i * n, n);
      }
    }

    private static void addScaled(float[] row, float factor, float[] b, int start) {
      for (int j = 0; j < row.length; j++) {
        row[j] += factor * b[start + j];
      }
    }

    private static float[] transposed(float[] a, int rows, int columns) {
      final float[] result = new float[a.length];
      for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
          result[j * rows + i] = a[i * columns + j];
        }
      }
      return result;
    }
  }
}
