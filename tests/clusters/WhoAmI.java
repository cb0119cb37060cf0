import io.syncline.ProcessGroup;
import io.syncline.World;

/** Joins the job, and prints who this process is in it. */
public final class WhoAmI {
  private WhoAmI() {}

  public static void main(String[] args) {
    try (World world = World.init();
        ProcessGroup group = world.group()) {
      long[] sum = {world.rank()};
      group.allReduce(sum);
      // In one write: printf makes several, between which mpirun puts what other ranks print.
      System.out.print(
          String.format(
              "rank %d of %d, local %d, sum %d, job java.%n",
              world.rank(), world.size(), world.localRank(), sum[0]));
      group.barrier();
    }
  }
}
