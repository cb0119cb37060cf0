import io.syncline.ProcessGroup;
import io.syncline.Tensor;
import io.syncline.World;
import java.io.BufferedReader;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Syncline from Java with direct buffers, as a system of the runner; see harness.h. */
public final class CollectivesPeer {
  private static final int WARM_UP_CALLS = 2;
  private static final int PATTERN_PERIOD = 7;

  private final Path folder;
  private final int rank;
  private final int size;
  private final Gate gate;
  private final ProcessGroup group;

  private CollectivesPeer(Map<String, String> options, ProcessGroup group) throws IOException {
    folder = Path.of(options.get("folder"));
    rank = group.rank();
    size = group.size();
    gate = new Gate(folder.resolve("gate"), size, options.get("waiting").equals("yield"));
    this.group = group;
  }

  /** The gate of gate.h, on the same file. */
  private static final class Gate {
    static final int MOST_ITERATIONS = 4096;

    private static final VarHandle INT =
        MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.nativeOrder());
    private static final VarHandle LONG =
        MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
    private static final int ARRIVED = 0;
    private static final int PASSAGES = 64;
    private static final int START_NS = 128;
    private static final int GIVEN_UP = 192;
    private static final int DURATIONS = 4096;
    private static final long LEAD_NS = 1000;
    private static final int POLITENESS_AFTER = 500;
    private static final long DEADLINE_NS = Duration.ofMinutes(1).toNanos();

    private final MappedByteBuffer shared;
    private final int size;
    private final boolean yields;

    Gate(Path path, int size, boolean yields) throws IOException {
      final long bytes = DURATIONS + (long) size * MOST_ITERATIONS * Long.BYTES;
      try (FileChannel file =
          FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
        shared = file.map(FileChannel.MapMode.READ_WRITE, 0, bytes);
      }
      this.size = size;
      this.yields = yields;
    }

    void pass() {
      final int passages = (int) INT.getAcquire(shared, PASSAGES);
      if ((int) INT.getAndAdd(shared, ARRIVED, 1) + 1 == size) {
        INT.set(shared, ARRIVED, 0);
        LONG.set(shared, START_NS, System.nanoTime() + LEAD_NS);
        INT.setRelease(shared, PASSAGES, passages + 1);
      } else {
        awaitPassage(passages);
      }
      final long start = (long) LONG.getOpaque(shared, START_NS);
      while (System.nanoTime() < start) {
        Thread.onSpinWait();
      }
      if ((int) INT.getOpaque(shared, GIVEN_UP) != 0) {
        throw new IllegalStateException("another rank has failed");
      }
    }

    private void awaitPassage(int passages) {
      final long deadline = System.nanoTime() + DEADLINE_NS;
      for (int spins = 1; (int) INT.getAcquire(shared, PASSAGES) == passages; ++spins) {
        if (yields || spins > POLITENESS_AFTER) {
          Thread.yield();
        } else {
          Thread.onSpinWait();
        }
        if (spins % 1024 == 0
            && ((int) INT.getOpaque(shared, GIVEN_UP) != 0 || System.nanoTime() > deadline)) {
          throw new IllegalStateException("another rank has failed or is late");
        }
      }
    }

    void giveUp() {
      INT.setOpaque(shared, GIVEN_UP, 1);
    }

    void record(int rank, int iteration, long nanoseconds) {
      final int index = DURATIONS + (rank * MOST_ITERATIONS + iteration) * Long.BYTES;
      shared.order(ByteOrder.nativeOrder()).putLong(index, nanoseconds);
    }
  }

  /** The memory of a call, as in buffers.h. */
  private final class Buffers {
    final String operation;
    final int part;
    final int count;
    final FloatBuffer input;
    final FloatBuffer output;

    Buffers(String operation, long bytes) {
      this.operation = operation;
      final int parts =
          switch (operation) {
            case "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all" -> size;
            default -> 1;
          };
      part = (int) Math.max(1, bytes / Float.BYTES / parts);
      count = part * parts;
      input = allocate(operation.endsWith("gather") ? part : count);
      for (int i = 0; i < input.capacity(); ++i) {
        input.put(i, pattern(rank, i));
      }
      output =
          switch (operation) {
            case "all_reduce", "broadcast", "reduce" -> input;
            case "scatter", "reduce_scatter" -> allocate(part);
            default -> allocate(count);
          };
    }

    private static FloatBuffer allocate(int count) {
      return ByteBuffer.allocateDirect(count * Float.BYTES)
          .order(ByteOrder.nativeOrder())
          .asFloatBuffer();
    }

    List<Tensor> parts(FloatBuffer buffer) {
      final List<Tensor> parts = new ArrayList<>();
      for (int r = 0; r < (rank == 0 ? size : 0); ++r) {
        parts.add(Tensor.of(buffer.slice(r * part, part)));
      }
      return parts;
    }

    private float expected(int i) {
      return switch (operation) {
        case "all_reduce" -> sum(i);
        case "reduce" -> rank == 0 ? sum(i) : output.get(i);
        case "broadcast" -> pattern(0, i);
        case "all_gather" -> pattern(i / part, i % part);
        case "gather" -> rank == 0 ? pattern(i / part, i % part) : output.get(i);
        case "scatter" -> pattern(0, rank * part + i);
        case "reduce_scatter" -> sum(rank * part + i);
        case "all_to_all" -> pattern(i / part, rank * part + i % part);
        case "send_recv" -> (rank ^ 1) < size ? pattern(rank ^ 1, i) : output.get(i);
        default -> output.get(i);
      };
    }

    private float sum(int i) {
      return size * (size + 1) / 2 + size * (i % PATTERN_PERIOD);
    }

    void check() {
      final int step = Math.max(1, output.capacity() / 200);
      for (int i = 0; i < output.capacity(); i += step) {
        if (output.get(i) != expected(i)) {
          throw new IllegalStateException(
              "wrong result: element " + i + " is " + output.get(i) + ", not " + expected(i));
        }
      }
    }
  }

  private static float pattern(int rank, int i) {
    return rank + 1 + i % PATTERN_PERIOD;
  }

  private Runnable prepare(Buffers buffers) {
    final Tensor input = Tensor.of(buffers.input);
    final Tensor output = Tensor.of(buffers.output);
    return switch (buffers.operation) {
      case "all_reduce" -> () -> group.allReduce(output);
      case "broadcast" -> () -> group.broadcast(output, 0);
      case "reduce" -> () -> group.reduce(output, 0);
      case "all_gather" -> () -> group.allGatherSingle(output, input);
      case "gather" -> {
        final List<Tensor> outputs = buffers.parts(buffers.output);
        yield () -> group.gather(outputs, input, 0);
      }
      case "scatter" -> {
        final List<Tensor> inputs = buffers.parts(buffers.input);
        yield () -> group.scatter(output, inputs, 0);
      }
      case "reduce_scatter" -> () -> group.reduceScatterSingle(output, input);
      case "all_to_all" -> () -> group.allToAllSingle(output, input);
      case "barrier" -> group::barrier;
      case "send_recv" -> pingPong(input, output);
      default -> null;
    };
  }

  private Runnable pingPong(Tensor input, Tensor output) {
    final int peer = rank ^ 1;
    if (peer >= size) {
      return () -> {};
    }
    if (rank < peer) {
      return () -> {
        group.send(input, peer);
        group.recv(output, peer);
      };
    }
    return () -> {
      group.recv(output, peer);
      group.send(input, peer);
    };
  }

  private void time(Runnable call, Buffers buffers, int iterations) {
    for (int i = -1 - WARM_UP_CALLS; i < iterations; ++i) {
      gate.pass();
      final long start = System.nanoTime();
      call.run();
      final long duration = System.nanoTime() - start;
      if (i >= 0) {
        gate.record(rank, i, duration);
      } else if (i == -1 - WARM_UP_CALLS) {
        buffers.check();
      }
    }
    gate.pass(); // The buffers must outlive the peers' use of them.
  }

  private String run(String order) {
    final String[] words = order.split(" ");
    if (!words[0].equals("run")) {
      return "error unknown order " + order;
    }
    System.gc(); // The last call's buffers go before others come.
    final Buffers buffers = new Buffers(words[1], Long.parseLong(words[2]));
    final Runnable call = prepare(buffers);
    if (call == null) {
      return "unsupported";
    }
    try {
      time(call, buffers, Math.min(Integer.parseInt(words[3]), Gate.MOST_ITERATIONS));
      return "ok";
    } catch (RuntimeException error) {
      gate.giveUp();
      return "error " + error;
    }
  }

  private static void say(Path folder, int rank, String text) throws IOException {
    Files.writeString(folder.resolve(rank + ".replies"), text.replaceAll("\\s+", " ") + "\n");
  }

  private void serve() throws IOException {
    try (BufferedReader orders = Files.newBufferedReader(folder.resolve(rank + ".orders"))) {
      final String java = "Java " + System.getProperty("java.version") + ", direct buffers";
      say(folder, rank, "ready backend " + group.backend() + ", " + java);
      for (String order = orders.readLine();
          order != null && !order.equals("quit"); // It ends with the runner.
          order = orders.readLine()) {
        say(folder, rank, run(order));
      }
    }
  }

  public static void main(String[] args) throws IOException {
    final Map<String, String> options = new HashMap<>();
    for (String arg : args) {
      final String[] option = arg.substring(2).split("=", 2);
      options.put(option[0], option[1]);
    }
    final Path folder = Path.of(options.get("folder"));
    final int rank = Integer.parseInt(options.get("rank"));
    try (World world =
            World.builder()
                .backend(options.get("variant"))
                .initMethod("file://" + folder.resolve("store"))
                .rank(rank)
                .worldSize(Integer.parseInt(options.get("size")))
                .timeout(Duration.ofMinutes(1))
                .build();
        ProcessGroup group = world.group()) {
      new CollectivesPeer(options, group).serve();
    } catch (RuntimeException error) {
      say(folder, rank, "error " + error);
      throw error;
    }
  }
}
