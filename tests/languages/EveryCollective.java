import io.syncline.Message;
import io.syncline.ProcessGroup;
import io.syncline.ReduceOp;
import io.syncline.Tensor;
import io.syncline.WorkFuture;
import io.syncline.World;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** One rank of the group of three languages; see every_collective.py. */
public final class EveryCollective {
  private static final int COUNT = 4;

  private final ProcessGroup group;
  private final int rank;
  private final int size;

  private EveryCollective(ProcessGroup group) {
    this.group = group;
    rank = group.rank();
    size = group.size();
  }

  private static float[] own(int rank, float offset) {
    float[] values = new float[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = 10 * rank + i + offset;
    return values;
  }

  private float[] own() {
    return own(rank, 0);
  }

  private static void show(String name, Object... arrays) {
    StringBuilder line = new StringBuilder(name).append(':');
    for (Object array : arrays) {
      for (int i = 0; i < java.lang.reflect.Array.getLength(array); i++) {
        line.append(' ').append(java.lang.reflect.Array.get(array, i));
      }
    }
    System.out.println(line);
  }

  private static List<Tensor> tensors(float[][] arrays) {
    return Arrays.stream(arrays).map(Tensor::of).toList();
  }

  private static int[] sizes(List<byte[]> values) {
    return values.stream().mapToInt(value -> value.length).toArray();
  }

  private static byte[] repeat(char c, int times) {
    byte[] text = new byte[times];
    Arrays.fill(text, (byte) c);
    return text;
  }

  private void reductions() {
    for (ReduceOp op :
        List.of(ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)) {
      float[] x = own(rank, 1);
      group.allReduce(x, op);
      show("all_reduce " + op, x);
    }
    for (ReduceOp op : List.of(ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)) {
      long[] bits = {rank + 4, rank * 3};
      group.allReduce(bits, op);
      show("all_reduce " + op, bits);
    }
    float[] x = own();
    group.allReduce(Tensor.of(x), ReduceOp.PREMUL_SUM, null, 0.5 * (rank + 1));
    show("all_reduce PREMUL_SUM", x);
    x = own();
    group.reduce(x, 2);
    show("reduce", x);
    x = own();
    group.scan(Tensor.of(x));
    show("scan", x);
    x = own();
    group.exscan(Tensor.of(x));
    show("exscan", x);
    float[][] pair = {own(), own(rank, 100)};
    group.allReduceCoalesced(tensors(pair));
    show("all_reduce_coalesced", pair[0], pair[1]);
    pair = new float[][] {own(), own(rank, 100)};
    group.allReduceMulti(tensors(pair));
    show("all_reduce_multi", pair[0], pair[1]);
  }

  private void movements() {
    float[] x = own();
    group.broadcast(x, 1);
    show("broadcast", x);

    float[][] outputs = new float[size][];
    for (int r = 0; r < size; r++) outputs[r] = new float[r + 1];
    group.allGather(tensors(outputs), Tensor.of(Arrays.copyOf(own(), rank + 1)));
    show("all_gather", (Object[]) outputs);

    float[] y = new float[COUNT * size];
    group.allGatherSingle(Tensor.of(y), Tensor.of(own()));
    show("all_gather_single", y);

    outputs = new float[rank == 0 ? size : 0][COUNT];
    group.gather(tensors(outputs), Tensor.of(own()), 0);
    show("gather", (Object[]) outputs);

    float[][] inputs = new float[rank == 1 ? size : 0][];
    for (int r = 0; r < inputs.length; r++) inputs[r] = own(r, 0);
    x = new float[COUNT];
    group.scatter(Tensor.of(x), tensors(inputs), 1);
    show("scatter", x);

    inputs = new float[size][];
    for (int r = 0; r < size; r++) inputs[r] = own(rank, r);
    group.reduceScatter(Tensor.of(x), tensors(inputs));
    show("reduce_scatter", x);

    float[] one = new float[1];
    group.reduceScatterSingle(Tensor.of(one), Tensor.of(Arrays.copyOf(own(), size)));
    show("reduce_scatter_single", one);

    for (int r = 0; r < size; r++) inputs[r] = own(rank, 100 * r);
    outputs = new float[size][COUNT];
    group.allToAll(tensors(outputs), tensors(inputs));
    show("all_to_all", (Object[]) outputs);

    float[] six = new float[6];
    for (int i = 0; i < 6; i++) six[i] = 10 * rank + i;
    y = new float[(rank + 1) * size];
    long[] outputSplits = new long[size];
    Arrays.fill(outputSplits, rank + 1);
    group.allToAllSingle(
        Tensor.of(y), Tensor.of(six), outputSplits, new long[] {1, 2, 3});
    show("all_to_all_single", y);
  }

  private void messages() {
    WorkFuture sent = group.sendAsync(Tensor.of(own()), (rank + 1) % size, 7);
    float[] x = new float[COUNT];
    int source = group.recv(x, (rank + size - 1) % size, 7);
    sent.join();
    show("recv", x, new int[] {source});
    if (rank == 0) {
      int[] sources = {group.recv(x, -1), group.recv(x, -1)};
      Arrays.sort(sources);
      show("recv from any", sources);
    } else {
      group.send(own(), 0);
      show("recv from any");
    }
  }

  private void byteStrings() {
    byte[] text = repeat('x', rank + 1);
    show("all_gather_bytes", sizes(group.allGatherBytes(text)));
    show("broadcast_bytes", group.broadcastBytes(text, 2));
    show("gather_bytes", sizes(group.gatherBytes(text, 1)));
    List<byte[]> values = new ArrayList<>();
    for (int r = 0; r < size && rank == 0; r++) values.add(repeat('y', r + 2));
    show("scatter_bytes", group.scatterBytes(values, 0));
    if (rank == 0) {
      try (Message message = group.recvBytes(-1, 3)) {
        show("recv_bytes", message.value(), new int[] {message.sourceRank()});
      }
      return;
    }
    if (rank == 2) group.sendBytes(new byte[] {'a', 'b', 'c'}, 0, 3);
    show("recv_bytes");
  }

  private void groups() {
    float[] x = own();
    try (ProcessGroup half = group.split(new int[][] {{2, 0}, {1}})) {
      half.allReduce(x);
      show("split", x, new int[] {half.rank(), half.size()}, half.ranks());
    }
    x = own();
    WorkFuture work = group.allReduceAsync(Tensor.of(x));
    group.barrier();
    work.join();
    show("all_reduce_async", x);
    group.monitoredBarrier();
    show("monitored_barrier");
  }

  public static void main(String[] args) {
    int rank = Integer.parseInt(args[2]);
    try (World world =
            World.builder().backend(args[0]).initMethod(args[1]).rank(rank).worldSize(3).build();
        ProcessGroup group = world.group()) {
      EveryCollective program = new EveryCollective(group);
      program.reductions();
      program.movements();
      program.messages();
      program.byteStrings();
      program.groups();
    }
  }
}
