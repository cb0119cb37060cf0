package io.syncline;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
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

  private record Staged(Object array, DType dtype, Resource copy, Use use) {}

  private Resource[] used = new Resource[4];
  private int count;
  private List<Staged> staged = List.of();

  /** The value of {@code call}; a call that throws leaves nothing in use. */
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
    return use(Convert.notNull(handle, argument).resource);
  }

  long useOrNull(NativeHandle handle, String argument) {
    return handle == null ? 0 : use(handle, argument);
  }

  /** The address of the tensor's elements. */
  long use(Tensor tensor, String argument) {
    use(Convert.notNull(tensor, argument).resource);
    return tensor.address;
  }

  /** For each tensor its address, its type, its number of dimensions, and these. */
  long[] use(List<Tensor> tensors, String argument) {
    int size = 0;
    for (Tensor tensor : Convert.notNull(tensors, argument)) {
      size += 3 + Convert.notNull(tensor, argument).shape.length;
    }
    final long[] packed = new long[size];
    int at = 0;
    for (Tensor tensor : tensors) {
      packed[at] = use(tensor, argument);
      packed[at + 1] = tensor.type;
      packed[at + 2] = tensor.shape.length;
      System.arraycopy(tensor.shape, 0, packed, at + 3, tensor.shape.length);
      at += 3 + tensor.shape.length;
    }
    return packed;
  }

  /** A copy outside the heap of an array of numbers, as long as this scope. */
  Tensor stage(Object array, String argument, Use use) {
    final DType dtype = DType.ofArray(Convert.notNull(array, argument));
    final long length = java.lang.reflect.Array.getLength(array);
    final Staged copy = new Staged(array, dtype, StagingPool.take(length * dtype.size()), use);
    if (staged.isEmpty()) {
      staged = new ArrayList<>(2);
    }
    staged.add(copy);
    final long address = copy.copy.pointer();
    if (use != Use.OUT) {
      NativeMemory.copyIn(array, dtype.ordinal(), address);
    }
    return new Tensor(dtype, new long[] {length}, address, copy.copy, Tensor.Access.READ_WRITE);
  }

  List<Tensor> stageAll(Object[] arrays, String argument, Use use) {
    final List<Tensor> tensors = new ArrayList<>(Convert.notNull(arrays, argument).length);
    for (Object array : arrays) {
      tensors.add(stage(array, argument, use));
    }
    return tensors;
  }

  /** Copies what the call has written back to the arrays. */
  void copyBack() {
    for (Staged copy : staged) {
      if (copy.use != Use.IN) {
        NativeMemory.copyOut(copy.copy.pointer(), copy.dtype.ordinal(), copy.array);
      }
    }
  }

  /** Nothing is in use any more, and there are no copies. Does nothing the second time. */
  @Override
  public void close() {
    while (count > 0) {
      count--;
      used[count].release();
    }
    for (Staged copy : staged) {
      copy.copy.run();
    }
    staged = List.of();
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
