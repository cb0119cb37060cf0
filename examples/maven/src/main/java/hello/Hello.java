package hello;

import io.syncline.World;

/** Sums each rank's number over all ranks. */
public final class Hello {
  private Hello() {}

  public static void main(String[] arguments) {
    try (World world = World.init()) {
      final float[] x = {world.rank()};
      world.group().allReduce(x);
      System.out.println("rank " + world.rank() + " of " + world.size() + ": " + (int) x[0]);
    }
  }
}
