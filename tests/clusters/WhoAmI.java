import io.syncline.ProcessGroup;
import io.syncline.Tensor;
import io.syncline.World;
import java.util.Arrays;
import java.util.stream.LongStream;

/** Joins the job, and prints who this process is in it. */
public final class WhoAmI {
  private WhoAmI() {}

  public static void main(String[] args) {
    try (World world = World.init();
        ProcessGroup group = world.group()) {
      long[] sum = {world.rank()};
      group.allReduce(sum);
      long[] all = new long[world.size()];
      group.allGatherSingle(Tensor.of(all), Tensor.of(new long[] {world.rank()}));
      if (!Arrays.equals(all, LongStream.range(0, world.size()).toArray())) {
        throw new AssertionError("allGather gave " + Arrays.toString(all));
      }
      // In one write: printf makes several, between which mpirun puts what other ranks print.
      System.out.print(
          String.format(
              "rank %d of %d, local %d, sum %d, job java.%n",
              world.rank(), world.size(), world.localRank(), sum[0]));
      group.barrier();
    }
  }
}
