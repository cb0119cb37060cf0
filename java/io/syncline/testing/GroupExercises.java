package io.syncline.testing;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.syncline.Message;
import io.syncline.ProcessGroup;
import io.syncline.ReduceOp;
import io.syncline.WorkFuture;
import io.syncline.World;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * For each method of ProcessGroup, by its name in the description, one use of all of its overloads
 * on two ranks, with tensors in one form.
 */
public final class GroupExercises {
  /** One use, which fails if the outcome is wrong. */
  @FunctionalInterface
  public interface Exercise {
    void run() throws Exception;
  }

  private static final Duration TIMEOUT = Ranks.TIMEOUT;

  /** Besides send and recv. */
  private static final Set<String> TAKES_ARRAYS = Set.of("all_reduce", "broadcast", "reduce");

  private final World world;
  private final ProcessGroup group;
  private final Form form;
  private final int rank;
  private final Map<String, Exercise> exercises = new TreeMap<>();

  public GroupExercises(World world, Form form) {
    this.world = world;
    this.group = world.group();
    this.form = form;
    this.rank = world.rank();
    addToAll();
    addReductions();
    addGathers();
    addScatters();
    addCoalesced();
    addMulti();
    addPeers();
    addBytes();
    addGroups();
  }

  /** By the name of the method; the `_async` forms are part of the others. */
  public Map<String, Exercise> exercises() {
    return exercises;
  }

  // ---- Collectives over tensors ----

  private void addToAll() {
    collective(
        "broadcast",
        () -> list(form.of(rank + 1, 5), 1),
        List.of(TIMEOUT),
        arguments -> assertValues(arguments.get(0), 2, 5));
    collective("barrier", List::of, List.of(TIMEOUT), arguments -> {});
    exercises.put(
        "monitored_barrier",
        () -> {
          Calls.call(group, "monitored_barrier");
          Calls.call(group, "monitored_barrier", TIMEOUT);
        });
    collective(
        "all_to_all",
        () ->
            list(
                list(form.of(0), form.of(0)),
                list(form.of(10 * rank), form.of(10 * rank + 1))),
        List.of(TIMEOUT),
        arguments -> assertAll(arguments.get(0), new double[][] {{rank}, {10 + rank}}));
    collective(
        "all_to_all_single",
        () -> list(form.of(0, 0), form.of(10 * rank, 10 * rank + 1)),
        List.of(new long[] {1, 1}, new long[] {1, 1}, TIMEOUT),
        arguments -> assertValues(arguments.get(0), rank, 10 + rank));
  }

  private void addReductions() {
    final List<Object> options = List.of(ReduceOp.SUM, TIMEOUT, 1.0);
    collective(
        "all_reduce",
        () -> list(form.of(rank + 1, 5)),
        options,
        arguments -> assertValues(arguments.get(0), 3, 10));
    collective(
        "reduce",
        () -> list(form.of(rank + 1, 5), 1),
        options,
        arguments -> assertValues(arguments.get(0), rank == 1 ? 3 : 1, rank == 1 ? 10 : 5));
    collective(
        "scan",
        () -> list(form.of(rank + 1, 5)),
        options,
        arguments -> assertValues(arguments.get(0), rank == 0 ? 1 : 3, rank == 0 ? 5 : 10));
    collective(
        "exscan",
        () -> list(form.of(rank + 1, 5)),
        options,
        arguments -> assertValues(arguments.get(0), 1, 5));
    collective(
        "reduce_scatter",
        () -> list(form.of(0), list(form.of(rank + 1), form.of(rank + 10))),
        options,
        arguments -> assertValues(arguments.get(0), rank == 0 ? 3 : 21));
    collective(
        "reduce_scatter_single",
        () -> list(form.of(0), form.of(rank + 1, rank + 10)),
        options,
        arguments -> assertValues(arguments.get(0), rank == 0 ? 3 : 21));
  }

  private void addGathers() {
    collective(
        "all_gather",
        () -> list(list(form.of(0, 0), form.of(0)), rank == 0 ? form.of(1, 2) : form.of(3)),
        List.of(TIMEOUT),
        arguments -> assertAll(arguments.get(0), new double[][] {{1, 2}, {3}}));
    collective(
        "all_gather_single",
        () -> list(form.of(0, 0, 0, 0), form.of(rank, 7)),
        List.of(TIMEOUT),
        arguments -> assertValues(arguments.get(0), 0, 7, 1, 7));
    collective(
        "gather",
        () -> {
          final Object outputs =
              rank == 1 ? list(form.of(0, 0), form.of(0, 0)) : list();
          return list(outputs, form.of(rank, 7), 1);
        },
        List.of(TIMEOUT),
        arguments -> {
          final double[][] all = {{0, 7}, {1, 7}};
          assertAll(arguments.get(0), rank == 1 ? all : new double[0][]);
        });
  }

  private void addScatters() {
    collective(
        "scatter",
        () -> {
          final Object inputs = rank == 1 ? list(form.of(1, 2), form.of(3, 4)) : list();
          return list(form.of(0, 0), inputs, 1);
        },
        List.of(TIMEOUT),
        arguments -> assertValues(arguments.get(0), 1 + 2 * rank, 2 + 2 * rank));
  }

  private void addCoalesced() {
    final List<Object> options = List.of(ReduceOp.SUM, TIMEOUT, 1.0);
    collective(
        "broadcast_coalesced",
        () -> list(list(form.of(rank), form.of(rank, rank)), 1),
        List.of(TIMEOUT),
        arguments -> assertAll(arguments.get(0), new double[][] {{1}, {1, 1}}));
    collective(
        "all_reduce_coalesced",
        () -> list(list(form.of(rank), form.of(rank, 1))),
        options,
        arguments -> assertAll(arguments.get(0), new double[][] {{1}, {1, 2}}));
    collective(
        "all_gather_coalesced",
        () -> list(zeros(4), list(form.of(rank), form.of(rank + 5))),
        List.of(TIMEOUT),
        arguments -> assertAll(arguments.get(0), new double[][] {{0}, {1}, {5}, {6}}));
    collective(
        "reduce_scatter_coalesced",
        () -> list(zeros(2), list(form.of(1), form.of(2), form.of(3), form.of(4))),
        options,
        arguments -> assertAll(arguments.get(0), new double[][] {{2 + 2 * rank}, {6 + 2 * rank}}));
  }

  private void addMulti() {
    collective(
        "broadcast_multi",
        () -> list(list(form.of(10 * rank), form.of(10 * rank + 1)), 1),
        List.of(0, TIMEOUT),
        arguments -> assertAll(arguments.get(0), new double[][] {{10}, {10}}));
    collective(
        "all_reduce_multi",
        () -> list(list(form.of(rank), form.of(5))),
        List.of(ReduceOp.SUM, TIMEOUT, 1.0),
        arguments -> assertAll(arguments.get(0), new double[][] {{11}, {11}}));
    collective(
        "reduce_multi",
        () -> list(list(form.of(rank), form.of(5)), 1),
        List.of(ReduceOp.SUM, 0, TIMEOUT, 1.0),
        arguments ->
            assertAll(arguments.get(0), new double[][] {{rank == 1 ? 11 : 0}, {5}}));
    collective(
        "all_gather_multi",
        () -> list(zeros(8), list(form.of(rank), form.of(rank + 5))),
        List.of(TIMEOUT),
        arguments ->
            assertAll(
                arguments.get(0), new double[][] {{0}, {5}, {1}, {6}, {0}, {5}, {1}, {6}}));
    collective(
        "reduce_scatter_multi",
        () -> {
          final Object[] inputs = new Object[8];
          for (int i = 0; i < inputs.length; i++) {
            inputs[i] = form.of(i % 4 + 1);
          }
          return list(zeros(2), list(inputs));
        },
        List.of(ReduceOp.SUM, TIMEOUT, 1.0),
        arguments -> assertAll(arguments.get(0), new double[][] {{4 + 8 * rank}, {8 + 8 * rank}}));
  }

  // ---- Between two ranks, and bytes ----

  private void addPeers() {
    final Exercise exercise =
        () -> {
          final List<Object> all = List.of(3, TIMEOUT);
          for (String suffix : List.of("", "_async")) {
            for (List<Object> options : choices(all)) {
              exercisePeers(suffix, Form::tensors, options);
            }
          }
          if (form.isTakenAsItIs()) {
            for (List<Object> options : withoutTimeout(all)) {
              exercisePeers("", array -> array, options);
            }
          }
        };
    exercises.put("send", exercise);
    exercises.put("recv", () -> {}); // Done with send.
  }

  private void exercisePeers(String suffix, Function<Object, Object> handed, List<Object> options)
      throws Exception {
    final Object tensor = rank == 0 ? form.of(1, 2) : form.of(0, 0);
    final String name = (rank == 0 ? "send" : "recv") + suffix;
    final Object outcome = call(name, list(handed.apply(tensor), 1 - rank), options);
    assertValues(tensor, 1, 2);
    if (rank == 1) {
      final int source =
          outcome instanceof WorkFuture future
              ? (int) Calls.call(future.work(), "source_rank")
              : (int) outcome;
      assertEquals(0, source);
    }
  }

  private void addBytes() {
    final byte[] mine = {(byte) rank, -1, 0};
    final byte[][] all = {{0, -1, 0}, {1, -1, 0}};
    blocking(
        "all_gather_bytes",
        list((Object) mine),
        outcome -> assertArrayEquals(all, ((List<?>) outcome).toArray()));
    blocking(
        "broadcast_bytes",
        list(mine, 1),
        outcome -> assertArrayEquals(all[1], (byte[]) outcome));
    blocking(
        "gather_bytes",
        list(mine, 1),
        outcome ->
            assertArrayEquals(rank == 1 ? all : new byte[0][], ((List<?>) outcome).toArray()));
    blocking(
        "scatter_bytes",
        list(rank == 1 ? List.of(all[0], all[1]) : List.of(), 1),
        outcome -> assertArrayEquals(all[rank], (byte[]) outcome));
    final Exercise exercise =
        () -> {
          for (List<Object> options : choices(List.of(3, TIMEOUT))) {
            if (rank == 0) {
              call("send_bytes", list(mine, 1), options);
            } else {
              final Message message = (Message) call("recv_bytes", list(0), options);
              assertArrayEquals(all[0], (byte[]) Calls.call(message, "value"));
              assertEquals(0, Calls.call(message, "source_rank"));
            }
          }
        };
    exercises.put("send_bytes", exercise);
    exercises.put("recv_bytes", () -> {}); // Done with send_bytes.
  }

  // ---- The group itself ----

  private void addGroups() {
    exercises.put("rank", () -> assertEquals(rank, Calls.call(group, "rank")));
    exercises.put("size", () -> assertEquals(2, Calls.call(group, "size")));
    exercises.put("name", () -> assertEquals("default", Calls.call(group, "name")));
    exercises.put("backend", () -> assertEquals(group.backend(), Calls.call(group, "backend")));
    exercises.put("timeout", () -> assertEquals(TIMEOUT, Calls.call(group, "timeout")));
    exercises.put(
        "ranks", () -> assertArrayEquals(new int[] {0, 1}, (int[]) Calls.call(group, "ranks")));
    exercises.put(
        "split",
        () -> {
          for (List<Object> options : choices(List.of(TIMEOUT))) {
            final int[][] groups = {{1}, {0}};
            try (var part = (ProcessGroup) call("split", list((Object) groups), options)) {
              assertEquals(1, part.size());
            }
          }
        });
    exercises.put(
        "shrink",
        () -> {
          for (List<Object> options : choices(List.of(TIMEOUT))) {
            try (ProcessGroup whole = world.newGroup(new int[] {0, 1})) {
              if (rank == 0) {
                final int[] lost = {1};
                final Object[] arguments = join(list((Object) lost), options);
                try (var rest = (ProcessGroup) Calls.call(whole, "shrink", arguments)) {
                  assertEquals(1, rest.size());
                }
              }
            }
          }
        });
    exercises.put(
        "close",
        () -> {
          for (List<Object> options : choices(List.of(TIMEOUT))) {
            Calls.call(world.newGroup(new int[] {0, 1}), "close", options.toArray());
          }
        });
    exercises.put(
        "set_timeout",
        () -> {
          try (ProcessGroup whole = world.newGroup(new int[] {0, 1})) {
            final Duration other = Duration.ofMillis(98765);
            Calls.call(whole, "set_timeout", other);
            assertEquals(other, whole.timeout());
          }
        });
    exercises.put(
        "abort",
        () -> {
          for (List<Object> options : choices(List.of("no more of it"))) {
            Calls.call(world.newGroup(new int[] {0, 1}), "abort", options.toArray());
          }
        });
  }

  // ---- Helpers ----

  /**
   * Calls both forms with every number of options, and those that take arrays; `check` gets the
   * arguments.
   */
  private void collective(
      String name,
      Supplier<List<Object>> required,
      List<Object> options,
      Consumer<List<Object>> check) {
    exercises.put(
        name,
        () -> {
          for (String suffix : List.of("", "_async")) {
            for (List<Object> given : choices(options)) {
              final List<Object> arguments = required.get();
              call(name + suffix, tensors(arguments), given);
              check.accept(arguments);
            }
          }
          if (TAKES_ARRAYS.contains(name) && form.isTakenAsItIs()) {
            for (List<Object> given : withoutTimeout(options)) {
              final List<Object> arguments = required.get();
              call(name, arguments, given);
              check.accept(arguments);
            }
          }
        });
  }

  private void blocking(String name, List<Object> required, Consumer<Object> check) {
    exercises.put(
        name,
        () -> {
          for (List<Object> given : choices(List.of(TIMEOUT))) {
            check.accept(call(name, required, given));
          }
        });
  }

  /** The outcome of a call on the group; a future is waited for. */
  private Object call(String name, List<Object> required, List<Object> options) throws Exception {
    final Object outcome = Calls.call(group, name, join(required, options));
    if (outcome instanceof WorkFuture future) {
      future.get(TIMEOUT.toSeconds(), TimeUnit.SECONDS);
    }
    return outcome;
  }

  private Object zeros(int count) {
    final Object[] tensors = new Object[count];
    for (int i = 0; i < count; i++) {
      tensors[i] = form.of(0);
    }
    return list(tensors);
  }

  private static void assertValues(Object tensor, double... expected) {
    assertArrayEquals(expected, Form.values(tensor));
  }

  private static void assertAll(Object tensors, double[][] expected) {
    assertArrayEquals(expected, Form.allValues((List<?>) tensors));
  }

  private static List<Object> list(Object... items) {
    return List.of(items);
  }

  /** What may be given: all, none, and what comes before the timeout. */
  private static List<List<Object>> choices(List<Object> options) {
    final List<List<Object>> result = withoutTimeout(options);
    result.add(options);
    return result;
  }

  private static List<List<Object>> withoutTimeout(List<Object> options) {
    final List<List<Object>> result = new ArrayList<>();
    result.add(List.of());
    if (options.indexOf(TIMEOUT) > 0) {
      result.add(options.subList(0, options.indexOf(TIMEOUT)));
    }
    return result;
  }

  private static List<Object> tensors(List<Object> arguments) {
    return arguments.stream().map(Form::tensors).toList();
  }

  private static Object[] join(List<Object> required, List<Object> options) {
    final List<Object> all = new ArrayList<>(required);
    all.addAll(options);
    return all.toArray();
  }
}
