import io.syncline.Tensor;
import io.syncline.TensorQueue;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.time.Duration;
import java.util.Optional;

/** Consumes batches that sharing.py puts into a queue, and writes to an array of it. */
public final class Sharing {
  private Sharing() {}

  public static void main(String[] args) {
    int count = 0;
    try (TensorQueue batches = TensorQueue.open(args[0]);
        Tensor totals = Tensor.openShared(args[1])) {
      DoubleBuffer total = totals.asDoubleBuffer(); // sharing.py sees what is written here.
      Optional<TensorQueue.Message> next;
      while ((next = batches.get(Duration.ofMinutes(1))).isPresent()) {
        try (TensorQueue.Message batch = next.get()) {
          FloatBuffer images = batch.tensors().get(0).asFloatBuffer(); // [n, 28, 28]
          LongBuffer labels = batch.tensors().get(1).asLongBuffer(); // [n]
          int pixels = images.capacity() / labels.capacity();
          for (int i = 0; i < images.capacity(); i++) {
            int label = (int) labels.get(i / pixels);
            total.put(label, total.get(label) + images.get(i));
          }
        }
        count++;
      }
    }
    System.out.println("Java has consumed " + count + " batches");
  }
}
