import io.syncline.DType;
import io.syncline.Tensor;
import io.syncline.TensorQueue;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** Shares a tensor and a queue with programs in other languages; see sharing.py. */
public final class Sharing {
  private static final Duration TIMEOUT = Duration.ofSeconds(60);

  private Tensor tensor;
  private TensorQueue queue;

  private Sharing() {}

  private static String sum(Tensor tensor) {
    FloatBuffer elements = tensor.asFloatBuffer();
    float sum = 0;
    while (elements.hasRemaining()) sum += elements.get();
    return Integer.toString((int) sum);
  }

  private String answer(String[] words) {
    switch (words[0]) {
      case "make":
        tensor = Tensor.emptyShared(DType.FLOAT32, 3, 5);
        return tensor.sharedHandle();
      case "open":
        tensor = Tensor.openShared(words[1]);
        return tensor.toString();
      case "fill":
        for (int i = 0; i < tensor.count(); i++) {
          tensor.asFloatBuffer().put(i, Float.parseFloat(words[1]));
        }
        return "ok";
      case "sum":
        return sum(tensor);
      case "free":
        tensor.close();
        System.gc(); // Buffers over the tensor keep its memory.
        return "ok";
      case "make_queue":
        queue = TensorQueue.create(1 << 16);
        return queue.handle();
      case "open_queue":
        queue = TensorQueue.open(words[1]);
        return "ok";
      case "put":
        float value = Float.parseFloat(words[1]);
        queue.put(
            List.of(Tensor.of(new float[] {value, value})),
            words[2].getBytes(StandardCharsets.UTF_8),
            TIMEOUT);
        return "ok";
      case "get":
        Optional<TensorQueue.Message> message = queue.get(TIMEOUT);
        if (message.isEmpty()) return "end";
        try (TensorQueue.Message got = message.get()) {
          return sum(got.tensors().get(0)) + " " + new String(got.note(), StandardCharsets.UTF_8);
        }
      default:
        queue.shutdown();
        return "ok";
    }
  }

  public static void main(String[] args) throws IOException {
    Sharing program = new Sharing();
    BufferedReader commands =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    String line;
    while ((line = commands.readLine()) != null) {
      try {
        System.out.println(program.answer(line.split(" ")));
      } catch (RuntimeException e) {
        System.out.println("error: " + e.getMessage());
      }
    }
  }
}
