import io.syncline.DType;
import io.syncline.DistMismatchException;
import io.syncline.ProcessGroup;
import io.syncline.ReduceOp;
import io.syncline.Tensor;
import io.syncline.World;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A tour of process groups in Java: reductions, sub-groups, work in the background, errors.
 *
 * <pre>
 * ./bazelw build //examples:tour_java
 * ./bazelw run //launch:run -- --standalone --nproc-per-node=3 --no-python bazel-bin/examples/tour_java
 * </pre>
 */
public final class Tour {
  private static int rank;

  private Tour() {}

  private static void say(String text) {
    System.out.println("rank " + rank + ": " + text);
  }

  public static void main(String[] args) {
    try (World world = World.init(); // As the launcher's environment says.
        ProcessGroup group = world.group()) {
      rank = group.rank();
      int size = group.size();

      // Every rank contributes its number; all get the sum, in place.
      float[] x = {rank, rank, rank, rank};
      group.allReduce(x);
      say(String.format("the sum is %.0f", x[0]));

      // Memory that the other ranks of this host read where it is, for large buffers.
      try (Tensor large = Tensor.emptyShared(DType.FLOAT32, 1 << 20)) {
        FloatBuffer z = large.asFloatBuffer();
        for (int i = 0; i < z.limit(); i++) {
          z.put(i, rank);
        }
        group.allReduce(large);
        say(String.format("the shared sum is %.0f", z.get(z.limit() - 1)));
      }

      // In the background: the inputs of all ranks are on their way while this one goes on.
      float[] gathered = new float[2 * size];
      CompletableFuture<Void> work =
          group.allGatherSingleAsync(
              Tensor.of(gathered), Tensor.of(new float[] {rank, rank}));
      int[] evens = IntStream.range(0, size).filter(r -> r % 2 == 0).toArray();
      int[] odds = IntStream.range(0, size).filter(r -> r % 2 == 1).toArray();
      try (ProcessGroup half = group.split(new int[][] {evens, odds})) {
        work.join();
        say(
            "gathered "
                + IntStream.range(0, size)
                    .mapToObj(r -> String.format("%.0f", gathered[2 * r]))
                    .collect(Collectors.joining(" ")));

        // In the half of the ranks that this one belongs to.
        long[] y = {rank};
        half.allReduce(y, ReduceOp.MAX);
        say("the largest of my half is " + y[0]);
      }

      // A bad argument is refused before anything happens, and the group goes on.
      try {
        group.broadcast(x, size);
      } catch (IllegalArgumentException error) {
        say("refused: " + error.getMessage());
      }

      // Ranks that disagree all get an error that says who called what. Their group is then
      // broken.
      int[] everybody = IntStream.range(0, size).toArray();
      try (ProcessGroup allRanks = world.newGroup(everybody)) {
        float[] z = new float[rank == 0 ? 2 : 3];
        Arrays.fill(z, 1);
        allRanks.allReduce(z);
      } catch (DistMismatchException error) {
        say("mismatch: " + error.getMessage());
      }

      group.barrier(); // Other groups are not affected.
    }
  }
}
