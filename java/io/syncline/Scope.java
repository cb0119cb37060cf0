package io.syncline;

import java.lang.ref.Reference;
import java.lang.reflect.Array;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * What one call uses, kept alive until the call is over: handles, tensors, and the copies of
 * arrays. Used by one thread at a time.
 */
final class Scope implements AutoCloseable {
  /** What a call does with an array. */
  enum Use {
    IN,
    OUT,
    IN_OUT
  }

  private record Staged(DType dtype, Resource copy, Use use) {
    Staged with(Use other) {
      return new Staged(dtype, copy, use == other ? use : Use.IN_OUT);
    }
  }

  private Resource[] used = new Resource[4];
  private int count;
  private Map<Object, Staged> staged = Map.of(); // By array.
  private boolean inFlight;

  /** The value of {@code call}; one that throws before it is in flight leaves nothing in use. */
  static <T> T held(Function<Scope, T> call) {
    final Scope scope = new Scope();
    try {
      return call.apply(scope);
    } catch (Throwable e) {
      scope.close();
      throw e;
    }
  }

  long use(NativeHandle handle, String argument) {
    final long pointer = use(Convert.notNull(handle, argument).resource);
    Reference.reachabilityFence(handle); // Else it might be cleaned before it is in use.
    return pointer;
  }

  long useOrNull(NativeHandle handle, String argument) {
    return handle == null ? 0 : use(handle, argument);
  }

  /** The address of the elements of a tensor that the call reads and writes. */
  long use(Tensor tensor, String argument) {
    return use(tensor, argument, Use.IN_OUT);
  }

  /** The same of a tensor that the call only reads. */
  long read(Tensor tensor, String argument) {
    return use(tensor, argument, Use.IN);
  }

  /** The same of a tensor that the call only writes. */
  long write(Tensor tensor, String argument) {
    return use(tensor, argument, Use.OUT);
  }

  /** For each tensor its address, its type, its number of dimensions, and these. */
  long[] use(List<Tensor> tensors, String argument) {
    return use(tensors, argument, Use.IN_OUT);
  }

  /** The same of tensors that the call only reads. */
  long[] read(List<Tensor> tensors, String argument) {
    return use(tensors, argument, Use.IN);
  }

  /** The same of tensors that the call only writes. */
  long[] write(List<Tensor> tensors, String argument) {
    return use(tensors, argument, Use.OUT);
  }

  private long[] use(List<Tensor> tensors, String argument, Use use) {
    // A copy, lest another thread change the list between here and there.
    final Tensor[] fixed = Convert.notNull(tensors, argument).toArray(new Tensor[0]);
    int size = 0;
    for (Tensor tensor : fixed) {
      size += 3 + Convert.notNull(tensor, argument).shape.length;
    }
    final long[] packed = new long[size];
    int at = 0;
    for (Tensor tensor : fixed) {
      packed[at] = use(tensor, argument, use);
      packed[at + 1] = tensor.type;
      packed[at + 2] = tensor.shape.length;
      System.arraycopy(tensor.shape, 0, packed, at + 3, tensor.shape.length);
      at += 3 + tensor.shape.length;
    }
    return packed;
  }

  private long use(Tensor tensor, String argument, Use use) {
    use(Convert.notNull(tensor, argument).resource);
    Reference.reachabilityFence(tensor); // Else it might be cleaned before it is in use.
    return tensor.array == null ? tensor.address : stage(tensor.array, tensor.dtype(), use);
  }

  /**
   * The address of a copy outside the heap of an array of numbers, as long as this scope. The same
   * array has the same copy: what shares memory there is seen to share it.
   */
  private long stage(Object array, DType dtype, Use use) {
    final Staged before = staged.get(array);
    final Staged copy = before == null ? copyOf(array, dtype, use) : before.with(use);
    if (staged.isEmpty()) {
      staged = new IdentityHashMap<>(2);
    }
    staged.put(array, copy);
    final long address = copy.copy.pointer();
    if (use != Use.OUT && (before == null || before.use == Use.OUT)) {
      NativeMemory.copyIn(array, copy.dtype.ordinal(), address);
    }
    return address;
  }

  /** Copies what the call has written back to the arrays. */
  void copyBack() {
    staged.forEach((array, copy) -> {
      if (copy.use != Use.IN) {
        NativeMemory.copyOut(copy.copy.pointer(), copy.dtype.ordinal(), array);
      }
    });
  }

  /** From now on an operation uses all of this, until {@link #end}. */
  void inFlight() {
    inFlight = true;
  }

  /** Nothing is in use any more, unless an operation is in flight, and there are no copies. */
  @Override
  public void close() {
    if (!inFlight) {
      end();
    }
  }

  /** As close, once the operation is over. Does nothing the second time. */
  void end() {
    while (count > 0) {
      count--;
      used[count].release();
    }
    staged.values().forEach(copy -> copy.copy.run());
    staged = Map.of();
  }

  private static Staged copyOf(Object array, DType dtype, Use use) {
    final long length = Array.getLength(array);
    return new Staged(dtype, StagingPool.take(length * dtype.size()), use);
  }

  private long use(Resource resource) {
    final long pointer = resource.acquire();
    if (count == used.length) {
      used = Arrays.copyOf(used, 2 * count);
    }
    used[count] = resource;
    count++;
    return pointer;
  }
}
