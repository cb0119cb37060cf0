package io.syncline;

import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;

/**
 * Averages gradients over all ranks, in the background of the backward pass.
 *
 * <p>Gradients lie in buckets, flat buffers that are all-reduced as soon as their last gradient is
 * ready. Write each one in place and say so, last layer first; then finish the step:
 *
 * <pre>{@code
 * try (GradientReducer reducer = GradientReducer.create(group, parameters)) {
 *   for (Batch batch : batches) {
 *     for (int i = parameters.size() - 1; i >= 0; i--) {
 *       model.gradient(i, batch, reducer.floats(i)); // Or reducer.gradient(i), a tensor.
 *       reducer.ready(i);
 *     }
 *     reducer.finish();
 *     for (int i = 0; i < parameters.size(); i++) {
 *       optimizer.update(i, reducer.floats(i)); // The average.
 *     }
 *   }
 * }
 * }</pre>
 *
 * <p>All ranks must make it with parameters of the same types and shapes, and finish the same
 * number of steps, but for {@link #join}. Different gradients may be written and marked by
 * different threads. The places of the gradients change when the buckets are made anew: after the
 * first step, in the order in which rank 0's gradients came, and by {@link #replaceGroup}. So ask
 * for them in each step.
 */
public final class GradientReducer implements AutoCloseable {
  /** What {@link #join} is to do otherwise than by default. */
  public enum Join {
    /** Divides sums by the number of ranks that still have input, not by that of all ranks. */
    DIVIDE_BY_ACTIVE_RANKS,
    /**
     * As soon as a rank has no more input while others have, all of them, it included, get a
     * DistException that names the ranks that have none.
     */
    THROW_ON_EARLY_TERMINATION,
  }

  private final Reducer reducer;
  private final FloatBuffer[] floats; // Those that have been asked for, of this generation.
  private final Tensor[] gradients;
  private ProcessGroup group;
  private long generation;
  private boolean synchronizes = true;
  private Set<Join> joining; // Null outside join.
  private volatile boolean begun;
  private volatile boolean hasFailed; // The last finish; its step may still be under way.

  private GradientReducer(Reducer reducer, ProcessGroup group, int count) {
    this.reducer = reducer;
    this.group = group;
    this.floats = new FloatBuffer[count];
    this.gradients = new Tensor[count];
    this.generation = reducer.generation();
  }

  /**
   * A reducer with the defaults of {@link #builder}. Waits for all ranks.
   *
   * @param group the ranks to average over
   * @param parameters tensors of the gradients' types and shapes, in the order of the forward pass;
   *     their elements do not matter
   * @return the reducer
   * @throws DistMismatchException if ranks gave different parameters; it names the first
   */
  public static GradientReducer create(ProcessGroup group, List<Tensor> parameters) {
    return builder(group, parameters).build();
  }

  /**
   * As {@link #create}, with options by name.
   *
   * @param group the ranks to average over
   * @param parameters as for create
   * @return the options so far
   */
  public static Builder builder(ProcessGroup group, List<Tensor> parameters) {
    return new Builder(group, parameters);
  }

  /** The options of a reducer. All ranks must set the same ones. */
  public static final class Builder {
    private final ProcessGroup group;
    private final int count;
    private final Reducer.Builder options;
    private CommHook hook;

    private Builder(ProcessGroup group, List<Tensor> parameters) {
      this.group = Convert.notNull(group, "group");
      this.count = Convert.notNull(parameters, "parameters").size();
      this.options = Reducer.builder(group, parameters);
    }

    /**
     * Names for messages.
     *
     * @param names one for each parameter
     * @return this
     */
    public Builder names(List<String> names) {
      options.names(names);
      return this;
    }

    /**
     * How large buckets become; 25 MiB by default.
     *
     * @param bytes at which a bucket is full
     * @return this
     */
    public Builder bucketCapBytes(long bytes) {
      options.bucketCapBytes(bytes);
      return this;
    }

    /**
     * The same for the first bucket to be reduced, which is smaller so that communication starts
     * early; 1 MiB by default.
     *
     * @param bytes at which it is full
     * @return this
     */
    public Builder firstBucketCapBytes(long bytes) {
      options.firstBucketCapBytes(bytes);
      return this;
    }

    /**
     * The same for each bucket, in place of the two above.
     *
     * @param bytes for each bucket in the order of reduction; the last one is that of all further
     *     ones
     * @return this
     */
    public Builder bucketCapsBytes(long... bytes) {
      options.bucketCapsBytes(bytes);
      return this;
    }

    /**
     * Parameters whose gradients are rows: see {@link #readyRows}.
     *
     * @param indices of these parameters
     * @return this
     */
    public Builder sparse(int... indices) {
      options.sparse(indices);
      return this;
    }

    /**
     * Steps may leave out parameters, which count as zeros on that rank; costs a small all-reduce
     * in each step. See {@link GradientReducer#isUsed}.
     *
     * @return this
     */
    public Builder findUnusedParameters() {
      options.findUnusedParameters(true);
      return this;
    }

    /**
     * As findUnusedParameters, but those that the first step leaves out are those of all steps.
     *
     * @return this
     */
    public Builder staticGraph() {
      options.staticGraph(true);
      return this;
    }

    /**
     * Leaves the buckets as they are after the first step.
     *
     * @return this
     */
    public Builder keepBuckets() {
      options.rebuildBuckets(false);
      return this;
    }

    /**
     * How buckets are averaged; by default by an all-reduce.
     *
     * @param hook of this reducer alone
     * @return this
     */
    public Builder hook(CommHook hook) {
      this.hook = Convert.notNull(hook, "hook");
      return this;
    }

    /**
     * Makes the reducer. Waits for all ranks.
     *
     * @return the reducer
     * @throws DistMismatchException if ranks gave different parameters or options; it names the
     *     first
     */
    public GradientReducer build() {
      final Reducer reducer = options.build();
      try {
        if (hook != null) {
          reducer.setHook(hook);
        }
        return new GradientReducer(reducer, group, count);
      } catch (RuntimeException e) {
        reducer.close();
        throw e;
      }
    }
  }

  /**
   * The place of a gradient, of its parameter's type and shape, in this step: to be written before
   * {@link #ready(int)} and left alone until {@link #finish}, after which it holds the average.
   *
   * @param index of the parameter
   * @return a view, which need not be closed
   */
  public synchronized Tensor gradient(int index) {
    refresh();
    if (gradients[checked(index)] == null) {
      gradients[index] = reducer.gradient(index);
    }
    return gradients[index];
  }

  /**
   * The same place as a buffer of floats, for gradients of FLOAT32 with fewer than 2^29 elements.
   *
   * @param index of the parameter
   * @return a buffer, of its own position and limit, over the same memory
   * @throws IllegalArgumentException if the gradient is of another type
   */
  public synchronized FloatBuffer floats(int index) {
    refresh();
    if (floats[checked(index)] == null) {
      floats[index] = gradient(index).asFloatBuffer();
    }
    return floats[index].duplicate();
  }

  /**
   * Says that a gradient has been written in its place.
   *
   * @param index of the parameter
   * @throws IllegalArgumentException if it has been marked in this step
   */
  public void ready(int index) {
    beginOnce();
    reducer.markReady(index);
  }

  /**
   * Copies a gradient to its place and marks it; after steps of {@link #noSync} it is added
   * instead.
   *
   * @param index of the parameter
   * @param value of the parameter's type and size
   */
  public void ready(int index, Tensor value) {
    beginOnce();
    reducer.copyReady(index, value);
  }

  /**
   * As {@link #ready(int, Tensor)}.
   *
   * @param index of the parameter
   * @param value as many elements as the parameter has
   */
  public void ready(int index, float[] value) {
    beginOnce();
    reducer.copyReady(index, Tensor.ofArray(value, "value"));
  }

  /**
   * Gives the gradient of a sparse parameter. Both tensors are copied.
   *
   * @param index of the parameter
   * @param indices INT64 [n]: the rows, of which some may repeat
   * @param values of the parameter's type and of shape [n, columns...]
   */
  public void readyRows(int index, Tensor indices, Tensor values) {
    beginOnce();
    reducer.markReadySparse(index, indices, values);
  }

  /**
   * Waits until all gradients are averaged. The next gradient begins the next step.
   *
   * @throws IllegalArgumentException on all ranks, if ranks have not marked all gradients; it names
   *     them and their parameters, and this step is void and over
   * @throws DistTimeoutException also if another thread keeps the step from its end, as one that is
   *     still copying a gradient; the step then stays under way, and finish can be called again
   */
  public void finish() {
    beginOnce();
    try {
      reducer.finish();
    } catch (RuntimeException e) {
      hasFailed = true;
      throw e;
    } finally {
      begun = false;
    }
  }

  /**
   * Whether any rank had a gradient for a parameter in the last step.
   *
   * @param index of the parameter
   * @return false only with findUnusedParameters or staticGraph
   */
  public boolean isUsed(int index) {
    return reducer.isUsed(index);
  }

  /**
   * The rows of a sparse parameter in the last step, those of all ranks by rank.
   *
   * @param index of the parameter
   * @return INT64 [n]
   */
  public Tensor rowIndices(int index) {
    return reducer.sparseIndices(index);
  }

  /**
   * What belongs to {@link #rowIndices}, divided as averages are.
   *
   * @param index of the parameter
   * @return of shape [n, columns...]
   */
  public Tensor rowValues(int index) {
    return reducer.sparseValues(index);
  }

  /**
   * Runs steps that stay this rank's own, and are part of the first one after them. There {@link
   * #ready(int, float[])} adds to what is there; who writes in place must do so, too, in all but
   * the first of these steps.
   *
   * @param steps one or more, each with its finish
   */
  public void noSync(Runnable steps) {
    final boolean before = synchronizes;
    synchronizes = false;
    try {
      steps.run();
    } finally {
      synchronizes = before;
    }
  }

  /**
   * Runs steps of which ranks may have different numbers. A rank whose {@code steps} are over takes
   * part in the others' with zeros, until all are. So every rank must call it, with the same
   * options, and nothing else that others wait for happens inside.
   *
   * @param steps none, one or more, each with its finish
   * @param options what is to be otherwise
   */
  public void join(Runnable steps, Join... options) {
    if (joining != null) {
      throw new IllegalStateException("join cannot be used inside join");
    }
    joining = EnumSet.noneOf(Join.class);
    joining.addAll(List.of(options));
    try {
      steps.run();
      for (long active = reducer.countActive(false); active != 0;
          active = reducer.countActive(false)) {
        checkJoin(active, "left");
        reducer.shadowStep(divisor(active));
      }
    } finally {
      joining = null;
    }
  }

  /**
   * Averages buckets in another way from the next step on. On all ranks, between steps.
   *
   * @param hook of this reducer alone; null for an all-reduce
   */
  public void setHook(CommHook hook) {
    reducer.setHook(hook);
  }

  /**
   * Goes on in another group, after a failure: a step under way is dropped. On all ranks of the new
   * group, with equal parameters.
   *
   * @param group to average over
   */
  public synchronized void replaceGroup(ProcessGroup group) {
    begun = false;
    hasFailed = false;
    reducer.replaceGroup(group);
    this.group = group;
  }

  /**
   * The parameters of each bucket, in the order in which buckets are reduced.
   *
   * @return indices, by bucket
   */
  public int[][] buckets() {
    return reducer.buckets();
  }

  /**
   * When the buckets of the last step were ready, reduced and done.
   *
   * @return figures, and a table of them
   */
  public ReducerStats stats() {
    return reducer.stats();
  }

  /** Ends the use of this reducer; not of its group. Does nothing the second time. */
  @Override
  public void close() {
    reducer.close();
  }

  private void beginOnce() {
    if (!begun) {
      begin();
    }
  }

  private synchronized void begin() {
    if (begun) {
      return;
    }
    try {
      beginStep();
      hasFailed = false;
    } catch (IllegalArgumentException e) {
      if (!hasFailed) {
        throw e;
      }
      // The step of the finish that has failed goes on.
    }
    begun = true;
  }

  private void beginStep() {
    long divisor = 0;
    if (joining != null && synchronizes) {
      final long active = reducer.countActive(true);
      checkJoin(active, "active");
      divisor = divisor(active);
    }
    reducer.beginStep(synchronizes, new int[0], divisor);
  }

  private long divisor(long active) {
    return joining.contains(Join.DIVIDE_BY_ACTIVE_RANKS) ? active : group.size();
  }

  private void checkJoin(long active, String mine) {
    if (!joining.contains(Join.THROW_ON_EARLY_TERMINATION) || active == group.size()) {
      return;
    }
    final List<byte[]> states = group.allGatherBytes(mine.getBytes(StandardCharsets.UTF_8));
    final List<Integer> left = new ArrayList<>();
    for (int rank = 0; rank < states.size(); rank++) {
      if (new String(states.get(rank), StandardCharsets.UTF_8).equals("left")) {
        left.add(rank);
      }
    }
    throw new DistException(
        (left.size() == 1 ? "rank " + left.get(0) + " has" : "ranks " + left + " have")
            + " no more input, others have, and join was told THROW_ON_EARLY_TERMINATION: give all"
            + " ranks as many batches, or leave that out");
  }

  private int checked(int index) {
    if (index < 0 || index >= gradients.length) {
      throw new IllegalArgumentException(
          "there is no parameter " + index + ", only 0 to " + (gradients.length - 1));
    }
    return index;
  }

  /** Forgets places that buckets made anew have left. */
  private void refresh() {
    final long now = reducer.generation();
    if (now != generation) {
      generation = now;
      Arrays.fill(floats, null);
      Arrays.fill(gradients, null);
    }
  }
}
