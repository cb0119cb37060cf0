package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Calls;
import io.syncline.testing.Form;
import io.syncline.testing.GroupExercises;
import io.syncline.testing.GroupExercises.Exercise;
import io.syncline.testing.Ranks;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Every method of the description, in Java: all overloads of all of them are called. */
class ParityTest {
  private static final Duration TIMEOUT = Ranks.TIMEOUT;

  @TempDir Path folder;

  private final Map<String, Exercise> exercises = new TreeMap<>();

  @Test
  void everyOverloadOfEveryMethodDoesWhatItSays() throws Exception {
    final Set<String> exercised = new TreeSet<>();
    for (Form form : Form.values()) {
      exercised.addAll(exerciseGroups("local", form));
    }
    addStores();
    addRest();
    for (Map.Entry<String, Exercise> exercise : exercises.entrySet()) {
      run(exercise.getKey(), exercise.getValue());
    }
    exercised.addAll(exercises.keySet());

    final Set<String> described = describedMethods();
    assertEquals(described, exercised, "add an exercise for what is missing");
    final List<String> missed = new ArrayList<>();
    for (String type : described.stream().map(ParityTest::classOf).distinct().toList()) {
      final Class<?> generated = Class.forName("io.syncline." + type);
      missed.addAll(Calls.neverCalled(generated));
      for (Class<?> nested : generated.getDeclaredClasses()) {
        missed.addAll(Calls.neverCalled(nested));
      }
    }
    assertEquals(List.of(), missed, "overloads that no exercise calls");
  }

  @Test
  void glooDoesTheSame() throws Exception {
    for (Form form : List.of(Form.TENSOR, Form.FLOATS)) {
      exerciseGroups("gloo", form);
    }
  }

  @Test
  void aGroupHasFewMethods() {
    final List<String> methods =
        Arrays.stream(ProcessGroup.class.getDeclaredMethods())
            .filter(method -> Modifier.isPublic(method.getModifiers()) && !method.isSynthetic())
            .map(Method::toString)
            .sorted()
            .toList();
    assertTrue(methods.size() <= 200, methods.size() + " public methods: " + methods);
  }

  /** The names of what was exercised. */
  private static Set<String> exerciseGroups(String backend, Form form) throws Exception {
    final Set<String> described = describedMethods();
    final Set<String> names = new TreeSet<>();
    Ranks.run(
        backend,
        2,
        world -> {
          final GroupExercises group = new GroupExercises(world, form);
          for (Map.Entry<String, Exercise> exercise : group.exercises().entrySet()) {
            run(exercise.getKey() + " over " + backend + " of " + form, exercise.getValue());
          }
          if (world.rank() == 0) {
            for (String name : group.exercises().keySet()) {
              names.add("ProcessGroup." + name);
              final String twin = "ProcessGroup." + name + "_async";
              if (described.contains(twin)) {
                names.add(twin);
              }
            }
          }
        });
    return names;
  }

  private static void run(String what, Exercise exercise) {
    try {
      exercise.run();
    } catch (Exception | AssertionError e) {
      throw new AssertionError(what + ": " + e.getMessage(), e);
    }
  }

  // ---- Stores ----

  private void addStores() {
    final HashStore store = (HashStore) assertReturns(HashStore.class, "create");
    add("HashStore.create", () -> Calls.call(HashStore.class, "create", TIMEOUT));
    add("Store.set", () -> Calls.call(store, "set", "key", bytes("value")));
    add(
        "Store.get",
        () -> {
          Calls.call(store, "set", "got", bytes("é€😀"));
          assertArrayEquals(bytes("é€😀"), (byte[]) Calls.call(store, "get", "got"));
          assertArrayEquals(bytes("é€😀"), (byte[]) Calls.call(store, "get", "got", TIMEOUT));
        });
    add("Store.add", () -> assertEquals(1L << 40, Calls.call(store, "add", "sum", 1L << 40)));
    add(
        "Store.compare_set",
        () -> {
          final Object now = Calls.call(store, "compare_set", "cas", bytes(""), bytes("new"));
          assertArrayEquals(bytes("new"), (byte[]) now);
        });
    add(
        "Store.wait",
        () -> {
          Calls.call(store, "set", "waited for", bytes(""));
          Calls.call(store, "wait", List.of("waited for"));
          Calls.call(store, "wait", List.of("waited for"), TIMEOUT);
        });
    add("Store.check", () -> assertEquals(false, Calls.call(store, "check", List.of("none"))));
    add("Store.delete_key", () -> assertEquals(false, Calls.call(store, "delete_key", "none")));
    add(
        "Store.list_keys",
        () -> {
          final List<byte[]> values = List.of(bytes("1"), bytes(""));
          Calls.call(store, "multi_set", List.of("list/😀", "list/b"), values);
          assertEquals(List.of("list/b", "list/😀"), Calls.call(store, "list_keys", "list/"));
          assertTrue(((List<?>) Calls.call(store, "list_keys")).contains("list/b"));
        });
    add("Store.num_keys", () -> assertTrue((long) Calls.call(store, "num_keys") >= 2));
    add("Store.append", () -> Calls.call(store, "append", "appended", bytes("a")));
    add("Store.multi_set", () -> {}); // Done with list_keys and multi_get.
    add(
        "Store.multi_get",
        () -> {
          final List<String> keys = List.of("m1", "m2");
          Calls.call(store, "multi_set", keys, List.of(bytes("1"), bytes("2")));
          final byte[][] expected = {bytes("1"), bytes("2")};
          for (Object[] arguments : new Object[][] {{keys}, {keys, TIMEOUT}}) {
            final List<?> values = (List<?>) Calls.call(store, "multi_get", arguments);
            assertArrayEquals(expected, values.toArray());
          }
        });
    add("Store.timeout", () -> assertEquals(Duration.ofMinutes(5), Calls.call(store, "timeout")));
    addOtherStores(store);
  }

  private void addOtherStores(Store store) {
    final String file = folder.resolve("store").toString();
    final FileStore fileStore = (FileStore) assertReturns(FileStore.class, "create", file);
    add("FileStore.create", () -> Calls.call(FileStore.class, "create", file, TIMEOUT));
    add("FileStore.path", () -> assertEquals(file, Calls.call(fileStore, "path")));
    final TCPStore server =
        (TCPStore) assertReturns(TCPStore.class, "create", "127.0.0.1", 0, true, TIMEOUT);
    add(
        "TCPStore.create",
        () -> {
          Calls.call(TCPStore.class, "create", "127.0.0.1", 0, true);
          Calls.call(TCPStore.class, "create", "127.0.0.1", server.port());
        });
    add("TCPStore.host", () -> assertEquals("127.0.0.1", Calls.call(server, "host")));
    add("TCPStore.port", () -> assertEquals(server.port(), Calls.call(server, "port")));
    final PrefixStore part = (PrefixStore) assertReturns(PrefixStore.class, "create", "p", store);
    add("PrefixStore.create", () -> part.set("k", bytes("v")));
    add(
        "PrefixStore.underlying_store",
        () -> assertTrue(((Store) Calls.call(part, "underlying_store")).check(List.of("p/k"))));
  }

  // ---- Everything else ----

  private void addRest() {
    final World world = World.init("local", "", HashStore.create(), 0, 1);
    final ProcessGroup group = world.group();
    addWork(group);
    addMessage(group);
    addWorld(world);
    addReducer(group);
    addHooks(group);
    addElastic();
    add("Info.version", () -> assertFalse(((String) Calls.call(Info.class, "version")).isEmpty()));
    add("Info.backends", () -> assertEquals(Info.backends(), Calls.call(Info.class, "backends")));
    add("Info.stores", () -> assertEquals(Info.stores(), Calls.call(Info.class, "stores")));
    add("Info.check_backend", () -> Calls.call(Info.class, "check_backend", "local"));
    add("Info.describe_backend", () -> Calls.call(Info.class, "describe_backend", "local"));
    add(
        "Info.operations",
        () -> {
          final Object operations = Calls.call(Info.class, "operations", "local");
          assertTrue(((List<?>) operations).contains("all_reduce"));
          assertEquals(operations, Calls.call(Info.class, "operations", "local", "cpu"));
        });
    add(
        "Info.dtypes",
        () ->
            assertTrue(
                ((List<?>) Calls.call(Info.class, "dtypes", "local", "broadcast"))
                    .contains("float32")));
    add(
        "Info.capability_table",
        () -> assertTrue(((String) Calls.call(Info.class, "capability_table")).contains("local")));
  }

  private void addWork(ProcessGroup group) {
    final Work work = group.barrierAsync().work();
    add(
        "Work.wait",
        () -> {
          Calls.call(work, "wait");
          Calls.call(work, "wait", TIMEOUT);
        });
    add(
        "Work.synchronize",
        () -> {
          Calls.call(work, "synchronize");
          Calls.call(work, "synchronize", TIMEOUT);
        });
    add("Work.is_completed", () -> assertEquals(true, Calls.call(work, "is_completed")));
    add("Work.source_rank", () -> assertEquals(-1, Calls.call(work, "source_rank")));
    add(
        "Work.description",
        () -> assertTrue(((String) Calls.call(work, "description")).startsWith("barrier #")));
  }

  private void addMessage(ProcessGroup group) {
    add("Message.value", () -> {}); // Done with ProcessGroup.recv_bytes.
    add("Message.source_rank", () -> {});
  }

  private void addWorld(World world) {
    add(
        "World.init",
        () -> {
          // The shortest joins a world of its own, since no launcher has set the environment.
          final String url = "file://" + folder.resolve("rendezvous") + "?rank=0&world_size=1";
          final Object[] all = {"local", url, null, 0, 1, TIMEOUT, "a name", "cuda:0"};
          for (int count = 0; count <= all.length; count++) {
            final Object[] some = Arrays.copyOf(all, count);
            ((World) Calls.call(World.class, "init", some)).close();
          }
          addWorldBuilder();
        });
    add("World.rank", () -> assertEquals(0, Calls.call(world, "rank")));
    add("World.size", () -> assertEquals(1, Calls.call(world, "size")));
    add("World.local_rank", () -> assertEquals(0, Calls.call(world, "localRank")));
    add("World.group", () -> assertEquals(1, ((ProcessGroup) Calls.call(world, "group")).size()));
    add("World.store", () -> assertTrue(((Store) Calls.call(world, "store")).numKeys() >= 0));
    add(
        "World.new_group",
        () -> {
          final Object[] all = {new int[] {0}, "local", TIMEOUT, false, null};
          for (int count : List.of(1, 2, all.length)) {
            final Object[] some = Arrays.copyOf(all, count);
            ((ProcessGroup) Calls.call(world, "new_group", some)).close();
          }
        });
    add(
        "World.from_mpi",
        () -> {
          final Object[] all = {"Abacus", 0L, "auto", TIMEOUT, null};
          for (int count : List.of(3, 4, all.length)) {
            final Object[] some = Arrays.copyOf(all, count);
            // Where there is no MPI, and where there is one: "Abacus" is none.
            final RuntimeException thrown =
                assertThrows(
                    RuntimeException.class, () -> Calls.call(World.class, "from_mpi", some));
            assertTrue(
                thrown instanceof DistException || thrown instanceof IllegalArgumentException,
                thrown.toString());
          }
        });
    add(
        "World.close",
        () -> {
          Calls.call(World.init("local", "", HashStore.create(), 0, 1), "close");
          Calls.call(World.init("local", "", HashStore.create(), 0, 1), "close", TIMEOUT);
        });
  }

  private static void addWorldBuilder() throws Exception {
    final Object builder = Calls.call(World.class, "builder");
    Calls.call(builder, "backend", "local");
    Calls.call(builder, "init_method", "");
    Calls.call(builder, "store", HashStore.create());
    Calls.call(builder, "rank", 0);
    Calls.call(builder, "world_size", 1);
    Calls.call(builder, "timeout", TIMEOUT);
    Calls.call(builder, "group_name", "by name");
    Calls.call(builder, "device_id", "cuda:0"); // Of no use to this backend.
    ((World) Calls.call(builder, "build")).close();
  }

  private void addReducer(ProcessGroup group) {
    add(
        "Reducer.create",
        () -> {
          for (Form form : Form.values()) {
            final Object parameters = Form.tensors(List.of(form.of(1, 2), form.of(3)));
            final Object[] all = {
              group, parameters, List.of("w", "b"), 1000, 100, new long[0], new int[0], false, false,
              true
            };
            for (int count = 2; count <= all.length; count++) {
              final Object[] some = Arrays.copyOf(all, count);
              exerciseReducer((Reducer) Calls.call(Reducer.class, "create", some), form);
            }
          }
          final List<Tensor> parameters = List.of(Tensor.allocate(DType.FLOAT32, 2, 3));
          final Object builder = Calls.call(Reducer.class, "builder", group, parameters);
          Calls.call(builder, "names", List.of("w"));
          Calls.call(builder, "bucket_cap_bytes", 1000L);
          Calls.call(builder, "first_bucket_cap_bytes", 100L);
          Calls.call(builder, "bucket_caps_bytes", new long[] {100, 200});
          Calls.call(builder, "sparse", new int[] {0});
          Calls.call(builder, "find_unused_parameters", true);
          Calls.call(builder, "static_graph", false);
          Calls.call(builder, "rebuild_buckets", false);
          ((Reducer) Calls.call(builder, "build")).close();
        });
    for (String name : List.of("gradient", "mark_ready", "copy_ready", "finish", "buckets")) {
      add("Reducer." + name, () -> {}); // Done with create.
    }
    add("Reducer.begin_step", () -> exerciseSteps(group));
    for (String name :
        List.of("await_bucket", "is_used", "count_active", "shadow_step", "replace_group", "generation", "stats")) {
      add("Reducer." + name, () -> {}); // Done with begin_step.
    }
    add("ReducerStats.steps", () -> exerciseStats(group));
    for (String name :
        List.of(
            "hook", "bucket_bytes", "bucket_parameters", "ready", "start", "end", "backward_end",
            "step_end", "own_time", "copy_time", "communication_time", "hidden_time", "overlap_share",
            "total_overlap_share", "table")) {
      add("ReducerStats." + name, () -> {}); // Done with steps.
    }
    add(
        "Reducer.mark_ready_sparse",
        () -> {
          for (Form form : Form.values()) {
            exerciseSparse(group, form);
          }
        });
    add("Reducer.sparse_indices", () -> {}); // Done with mark_ready_sparse.
    add("Reducer.sparse_values", () -> {});
  }

  private static void exerciseReducer(Reducer reducer, Form form) throws Exception {
    final Tensor gradient = (Tensor) Calls.call(reducer, "gradient", 0);
    assertArrayEquals(new long[] {2}, gradient.shape());
    gradient.asByteBuffer().put(0, (byte) 1);
    Calls.call(reducer, "mark_ready", 0);
    Calls.call(reducer, "copy_ready", 1, Form.tensors(form.of(7)));
    Calls.call(reducer, "finish");
    assertEquals(1, gradient.asByteBuffer().get(0));
    final int[][] buckets = (int[][]) Calls.call(reducer, "buckets");
    assertEquals(2, Arrays.stream(buckets).mapToInt(bucket -> bucket.length).sum());
    reducer.close();
  }

  private static List<Tensor> twoParameters() {
    return List.of(Tensor.allocate(DType.FLOAT32, 2), Tensor.allocate(DType.FLOAT32, 1));
  }

  private static void exerciseSteps(ProcessGroup group) throws Exception {
    try (Reducer reducer =
        Reducer.builder(group, twoParameters()).findUnusedParameters(true).build()) {
      final Object[] all = {true, new int[] {1}, 1L};
      for (int count = 0; count <= all.length; count++) {
        Calls.call(reducer, "begin_step", Arrays.copyOf(all, count));
        reducer.copyReady(0, Tensor.of(new float[] {4, 6}));
        final boolean is_all_known = count >= 2; // Only then is the other one known to be unused.
        assertEquals(is_all_known, Calls.call(reducer, "await_bucket", 0L));
        reducer.finish();
        assertEquals(6, reducer.gradient(0).asFloatBuffer().get(1));
        assertEquals(true, Calls.call(reducer, "is_used", 0));
        assertEquals(false, Calls.call(reducer, "is_used", 1));
      }
      assertEquals(1, Calls.call(reducer, "count_active", true));
      Calls.call(reducer, "shadow_step");
      Calls.call(reducer, "shadow_step", 1L);
      Calls.call(reducer, "replace_group", group);
      assertEquals(1L, Calls.call(reducer, "generation"));
    }
  }

  private static void exerciseStats(ProcessGroup group) throws Exception {
    try (Reducer reducer = Reducer.create(group, twoParameters())) {
      reducer.copyReady(1, Tensor.of(new float[] {1}));
      reducer.copyReady(0, Tensor.of(new float[] {1, 2}));
      reducer.finish();
      final Object stats = Calls.call(reducer, "stats");
      assertEquals(1L, Calls.call(stats, "steps"));
      assertEquals("all_reduce", Calls.call(stats, "hook"));
      assertArrayEquals(new long[] {12}, (long[]) Calls.call(stats, "bucket_bytes"));
      assertArrayEquals(new int[] {2}, (int[]) Calls.call(stats, "bucket_parameters"));
      long last = 0;
      for (String name : List.of("ready", "start", "end")) {
        final long time = ((long[]) Calls.call(stats, name))[0];
        assertTrue(time >= last, name);
        last = time;
      }
      final long end = (long) Calls.call(stats, "step_end");
      assertTrue(last <= end);
      for (String name :
          List.of("backward_end", "own_time", "copy_time", "communication_time", "hidden_time")) {
        assertTrue((long) Calls.call(stats, name) <= end, name);
      }
      assertTrue((double) Calls.call(stats, "overlap_share") <= 1);
      assertTrue((double) Calls.call(stats, "total_overlap_share") <= 1);
      assertTrue(((String) Calls.call(stats, "table")).contains("bucket"));
    }
  }

  private static void exerciseSparse(ProcessGroup group, Form form) throws Exception {
    final DType type =
        form == Form.LONGS ? DType.INT64 : form == Form.TENSOR ? DType.FLOAT64 : DType.FLOAT32;
    try (Reducer reducer =
        Reducer.builder(group, List.of(Tensor.allocate(type, 4))).sparse(new int[] {0}).build()) {
      final Object values = form.of(5, 6);
      final Object indices;
      if (form == Form.TENSOR) {
        indices = Tensor.allocate(DType.INT64, 2);
        ((Tensor) indices).asLongBuffer().put(new long[] {1, 3});
      } else if (form == Form.BUFFER) {
        indices =
            ByteBuffer.allocateDirect(16)
                .order(ByteOrder.nativeOrder())
                .asLongBuffer()
                .put(new long[] {1, 3})
                .flip();
      } else {
        indices = form.of(1, 3);
      }
      if (!List.of(Form.TENSOR, Form.BUFFER, Form.LONGS).contains(form)) { // Indices are int64.
        assertThrows(
            IllegalArgumentException.class,
            () -> markReadySparse(reducer, indices, values));
        return;
      }
      markReadySparse(reducer, indices, values);
      reducer.finish();
      final Tensor rows = (Tensor) Calls.call(reducer, "sparse_indices", 0);
      assertEquals(3, rows.asLongBuffer().get(1));
      assertArrayEquals(
          new long[] {2}, ((Tensor) Calls.call(reducer, "sparse_values", 0)).shape());
    }
  }

  private static void markReadySparse(Reducer reducer, Object indices, Object values)
      throws Exception {
    Calls.call(reducer, "mark_ready_sparse", 0, Form.tensors(indices), Form.tensors(values));
  }

  private void addHooks(ProcessGroup group) {
    final Map<String, Object[]> all = new TreeMap<>();
    for (String name :
        List.of("all_reduce", "float16_compress", "bfloat16_compress", "quantize_per_tensor")) {
      all.put(name, new Object[0]);
    }
    all.put("power_sgd", new Object[] {1, 0L, 0.1, true, true, 0.0, 7L});
    all.put("batched_power_sgd", new Object[] {1, 0L, true, true, 0.0, 7L});
    all.put("quantize_per_channel", new Object[] {4});
    all.put("top_k", new Object[] {1.0});
    all.put("post_local_sgd", new Object[] {0L, group});
    for (Map.Entry<String, Object[]> hook : all.entrySet()) {
      final Object[] arguments = hook.getValue();
      final int least = hook.getKey().equals("post_local_sgd") ? 1 : 0;
      add(
          "CommHook." + hook.getKey(),
          () -> {
            for (int count = least; count <= arguments.length; count++) {
              final Object[] some = Arrays.copyOf(arguments, count);
              exerciseHook(group, (CommHook) Calls.call(CommHook.class, hook.getKey(), some));
            }
          });
    }
    add("CommHook.name", ParityTest::buildHooks);
    add("Reducer.set_hook", () -> exerciseHook(group, CommHook.of("own", this::exerciseBucket)));
    for (String name :
        List.of("index", "count", "step", "divisor", "is_last", "buffer", "gradients")) {
      add("GradBucket." + name, () -> {}); // Done with set_hook.
    }
    add("GradBucket.parameters", () -> {});
    add(
        "ParameterAverager.create",
        () -> {
          Calls.call(ParameterAverager.class, "create", group, 2L);
          final Object averager = Calls.call(ParameterAverager.class, "create", group, 2L, 1L);
          for (Form form : Form.values()) {
            Calls.call(averager, "average", Form.tensors(List.of(form.of(1, 2), form.of(3))));
          }
          assertEquals(true, Calls.call(averager, "average", List.of()));
        });
    add("ParameterAverager.average", () -> {});
  }

  private static void exerciseHook(ProcessGroup group, CommHook hook) throws Exception {
    try (Reducer reducer = Reducer.create(group, List.of(Tensor.allocate(DType.FLOAT32, 2, 3)))) {
      Calls.call(reducer, "set_hook", hook);
      reducer.copyReady(0, Tensor.of(new float[] {3, 3, 3, 3, 3, 3}));
      reducer.finish();
      assertEquals(3, reducer.gradient(0).asFloatBuffer().get(0), 1e-5);
      assertEquals(Calls.call(hook, "name"), reducer.stats().hook());
    }
  }

  private void exerciseBucket(GradBucket bucket, ProcessGroup group) throws Exception {
    assertEquals(0, Calls.call(bucket, "index"));
    assertEquals(1L, Calls.call(bucket, "count"));
    assertEquals(0L, Calls.call(bucket, "step"));
    assertEquals(1L, Calls.call(bucket, "divisor"));
    assertEquals(true, Calls.call(bucket, "is_last"));
    assertArrayEquals(new int[] {0}, (int[]) Calls.call(bucket, "parameters"));
    final List<?> gradients = (List<?>) Calls.call(bucket, "gradients");
    assertArrayEquals(new long[] {2, 3}, ((Tensor) gradients.get(0)).shape());
    group.allReduce((Tensor) Calls.call(bucket, "buffer"));
  }

  private static void buildHooks() throws Exception {
    for (String name : List.of("power_sgd", "batched_power_sgd")) {
      final Object builder = Calls.call(CommHook.class, name + "_builder");
      Calls.call(builder, "rank", 2);
      Calls.call(builder, "start_step", 10L);
      if (name.equals("power_sgd")) {
        Calls.call(builder, "min_compression_rate", 3.0);
      }
      Calls.call(builder, "use_error_feedback", false);
      Calls.call(builder, "warm_start", false);
      Calls.call(builder, "orthogonalization_epsilon", 1e-9);
      Calls.call(builder, "seed", 3L);
      assertEquals(name, Calls.call(Calls.call(builder, "build"), "name"));
    }
  }

  private void addElastic() {
    add(
        "Preemption.create",
        () -> {
          final Object[] all = {HashStore.create(), 0, 1, TIMEOUT};
          for (int count = 3; count <= all.length; count++) {
            all[0] = HashStore.create();
            final Object[] some = Arrays.copyOf(all, count);
            exercisePreemption((Preemption) Calls.call(Preemption.class, "create", some));
          }
        });
    for (String name : List.of("give_notice", "reached", "agreed_step")) {
      add("Preemption." + name, () -> {}); // Done with create.
    }
    add(
        "Heartbeat.create",
        () -> {
          final Heartbeat heartbeat = (Heartbeat) Calls.call(Heartbeat.class, "create");
          Calls.call(heartbeat, "beat");
          heartbeat.close();
        });
    add("Heartbeat.beat", () -> {});
  }

  private static void exercisePreemption(Preemption preemption) throws Exception {
    assertEquals(false, Calls.call(preemption, "reached", 5L));
    assertEquals(-1L, Calls.call(preemption, "agreed_step"));
    Calls.call(preemption, "give_notice");
    long step = 6;
    while (!(boolean) Calls.call(preemption, "reached", step)) {
      step++;
    }
    assertEquals(step, Calls.call(preemption, "agreed_step"));
    preemption.close();
  }

  // ---- Helpers ----

  private void add(String name, Exercise exercise) {
    exercises.put(name, exercise);
  }

  private static Object assertReturns(Class<?> type, String method, Object... arguments) {
    try {
      final Object made = Calls.call(type, method, arguments);
      assertEquals(type, made.getClass());
      return made;
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  private static Set<String> describedMethods() throws Exception {
    try (var in = ParityTest.class.getResourceAsStream("/io/syncline/methods.txt")) {
      return new TreeSet<>(new String(in.readAllBytes()).lines().toList());
    }
  }

  private static String classOf(String method) {
    return method.substring(0, method.indexOf('.'));
  }

  private static byte[] bytes(String text) {
    return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
  }
}
