package io.syncline;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.lang.reflect.Array;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.Objects;

/**
 * An n-dimensional array in row-major order without gaps: what groups send, receive and reduce.
 *
 * <p>Either its own memory outside the heap, from {@link #allocate} or {@link #emptyShared}, or the
 * memory of a direct buffer or of a plain array, from {@link #of(Buffer, long...)} and its like:
 *
 * <pre>{@code
 * float[] mine = {rank, rank};
 * float[] all = new float[2 * size];
 * group.allGatherSingle(Tensor.of(all), Tensor.of(mine)); // The result is in the array.
 * }</pre>
 *
 * <p>An operation on a view of a plain array copies the elements out of the heap, and back before
 * it completes; on all others it copies nothing. Not synchronized: as with an array, whoever shares
 * the elements between threads orders the accesses. An operation keeps the memory alive, whatever
 * else happens, until it has completed.
 */
public final class Tensor implements AutoCloseable {
  enum Access {
    READ_WRITE,
    READ_ONLY
  }

  /** Added to the number of the element type where the elements must not be written. */
  private static final int READ_ONLY = 0x100;

  /** So far to the left stands 1 + the number of the CUDA device where the elements are; or 0. */
  private static final int DEVICE_SHIFT = 16;

  private static final int DTYPE_MASK = 0xff;
  private static final int MOST_DEVICES = 0x7ffe;

  private static final MemoryPressure PRESSURE =
      new MemoryPressure(Runtime.getRuntime().maxMemory(), System::gc);

  final long address; // 0 of a view of a plain array.
  final Object array; // A plain array that this is a view of, or null.
  final int type;
  final long[] shape;
  final Resource resource;
  private final DType dtype;
  private final long count;
  private Cleaner.Cleanable cleanable; // Null if the memory needs no care.

  /** A view of memory that belongs to {@code resource} and lives as long. */
  Tensor(DType dtype, long[] shape, long address, Resource resource, Access access) {
    this(dtype, shape, address, resource, access, 0);
  }

  /** The same; {@code place} is 0 in main memory, else 1 + the number of a CUDA device. */
  private Tensor(
      DType dtype, long[] shape, long address, Resource resource, Access access, int place) {
    this.array = null;
    this.dtype = dtype;
    this.shape = shape;
    this.address = address;
    this.resource = resource;
    this.type =
        dtype.ordinal()
            + (access == Access.READ_ONLY ? READ_ONLY : 0)
            + (place << DEVICE_SHIFT);
    this.count = countOf(dtype, shape);
  }

  /** A view of a plain array. */
  private Tensor(DType dtype, long[] shape, Object array) {
    this.array = array;
    this.dtype = dtype;
    this.shape = shape;
    this.address = 0;
    this.resource = new Resource("Tensor", 0, ignored -> {});
    this.type = dtype.ordinal();
    this.count = countOf(dtype, shape);
  }

  /**
   * A new tensor, 64-byte aligned, its elements zero.
   *
   * <p>Its memory is freed once it is closed, or found by the garbage collector, and no buffer over
   * it is reachable any more. Where tensors that nobody closes pile up to the size of the heap, the
   * collector is asked to find them.
   *
   * @param dtype the type of its elements
   * @param shape its dimensions, none of them negative; none at all for a single element
   * @return the tensor
   * @throws IllegalArgumentException if a dimension is negative, or the whole larger than 2^63
   * bytes
   * @throws OutOfMemoryError if there is no room for it
   */
  public static Tensor allocate(DType dtype, long... shape) {
    NativeLibrary.load();
    final long[] ownShape = Convert.notNull(shape, "shape").clone();
    final long bytes = countOf(Convert.notNull(dtype, "dtype"), ownShape) * dtype.size();
    PRESSURE.allocated(bytes); // First: a collection may make the room.
    try {
      final long address = NativeMemory.allocateZeros(bytes);
      return owned(new Resource("Tensor", address, p -> free(p, bytes)), dtype, ownShape, address);
    } catch (OutOfMemoryError e) {
      PRESSURE.freed(bytes);
      throw e;
    }
  }

  /**
   * A new tensor that ranks on this host read where it is, in collectives on large tensors; its
   * elements are zero.
   *
   * <p>Collectives with the backends "shm" and "auto" then move nothing through buffers of their
   * own, if all ranks of the host pass such tensors or buffers over them; the results are the same.
   * The memory has no name in /dev/shm, takes one open file, and is freed as that of {@link
   * #allocate}.
   *
   * @param dtype the type of its elements
   * @param shape its dimensions, none of them negative; none at all for a single element
   * @return the tensor
   * @throws IllegalArgumentException if a dimension is negative, or the whole larger than 2^63
   * bytes
   * @throws DistBackendException with the size, if there is no room for it
   */
  public static Tensor emptyShared(DType dtype, long... shape) {
    NativeLibrary.load();
    final long[] ownShape = Convert.notNull(shape, "shape").clone();
    final long bytes = countOf(Convert.notNull(dtype, "dtype"), ownShape) * dtype.size();
    PRESSURE.allocated(bytes); // First: a collection may make the room.
    try {
      final long[] made = NativeMemory.allocateShared(dtype.ordinal(), ownShape);
      final Resource resource = new Resource("Tensor", made[0], p -> release(p, bytes));
      return owned(resource, dtype, ownShape, made[1]);
    } catch (DistException | OutOfMemoryError e) {
      PRESSURE.freed(bytes);
      throw e;
    }
  }

  /**
   * The tensor of a handle, over memory that another process of this user and host has as well, in
   * Java, Python or C++: both see each other's writes. It keeps the memory alive by itself.
   *
   * @param handle what {@link #sharedHandle} has returned there, or shared_handle in Python, or
   *     SharedHandle in C++
   * @return the tensor
   * @throws IllegalArgumentException if it is no handle
   * @throws DistBackendException which names the pid of the process that made it, if that has ended
   *     or has freed the memory, or is of another host, pid namespace (container) or user
   */
  public static Tensor openShared(String handle) {
    NativeLibrary.load();
    return NativeMemory.openShared(Convert.utf8(handle, "handle"));
  }

  /**
   * A short text by which other processes of this user and host open the same memory: by {@link
   * #openShared}, by open_shared in Python, by OpenShared in C++. It is good as long as this process
   * runs and keeps the memory; a process that has opened it keeps the memory itself.
   *
   * @return the handle
   * @throws IllegalArgumentException if this is no tensor of {@link #emptyShared} or {@link
   *     #openShared}, nor a view of a buffer over one, or is read-only, or has no elements
   */
  public String sharedHandle() {
    try (Scope scope = new Scope()) {
      if (array != null) {
        throw new IllegalArgumentException(
            this + " is a view of an array, which is not shared: use Tensor.emptyShared");
      }
      return Convert.text(NativeMemory.sharedHandle(scope.read(this, "this"), type, shape));
    }
  }

  /**
   * The elements of a direct buffer from its position to its limit, without a copy. The type of the
   * elements is that of the buffer; a ByteBuffer's are INT8. Those of a read-only buffer cannot be
   * written. The tensor keeps the buffer alive, but not the arena of a MemorySegment that it is a
   * view of: that must stay open while the tensor is in use.
   *
   * @param buffer a Byte-, Short-, Int-, Long-, Float- or DoubleBuffer: direct, in the order of
   * bytes
   *     of this machine
   * @param shape the dimensions; by default one, of all elements
   * @return a view; later changes of the buffer's position and limit do not concern it
   * @throws IllegalArgumentException if the buffer is on the heap, in the other order of bytes, or
   * of
   *     a size that does not fit the shape; the message says what to do
   */
  public static Tensor of(Buffer buffer, long... shape) {
    final DType dtype = DType.ofBuffer(Convert.notNull(buffer, "buffer"), "buffer");
    return view(buffer, "buffer", dtype, Convert.notNull(shape, "shape").clone());
  }

  /**
   * The bytes of a direct buffer from its position to its limit as elements of any type, without a
   * copy.
   *
   * @param buffer direct, aligned for the type, and in the order of bytes of this machine unless
   *     elements are single bytes: {@code buffer.order(ByteOrder.nativeOrder())}
   * @param dtype the type of the elements
   * @param shape the dimensions; by default one, of all elements
   * @return a view
   * @throws IllegalArgumentException as for {@link #of(Buffer, long...)}
   */
  public static Tensor of(ByteBuffer buffer, DType dtype, long... shape) {
    Convert.notNull(buffer, "buffer");
    final long[] ownShape = Convert.notNull(shape, "shape").clone();
    return view(buffer, "buffer", Convert.notNull(dtype, "dtype"), ownShape);
  }

  /**
   * The elements of a plain array as a tensor of {@link DType#FLOAT32}. An operation copies them
   * out of the heap when it begins, and what it writes back to the array before it completes; in
   * between the array must stay untouched. Views of one array share memory.
   *
   * @param array where the elements are
   * @param shape the dimensions; by default one, of all elements
   * @return a view, which has no buffer: read and write the array itself
   * @throws IllegalArgumentException if the shape does not fit the array
   */
  public static Tensor of(float[] array, long... shape) {
    return ofArray(array, "array", Convert.notNull(shape, "shape").clone());
  }

  /**
   * As {@link #of(float[], long...)}, of {@link DType#FLOAT64}.
   *
   * @param array where the elements are
   * @param shape the dimensions; by default one, of all elements
   * @return a view
   * @throws IllegalArgumentException if the shape does not fit the array
   */
  public static Tensor of(double[] array, long... shape) {
    return ofArray(array, "array", Convert.notNull(shape, "shape").clone());
  }

  /**
   * As {@link #of(float[], long...)}, of {@link DType#INT32}.
   *
   * @param array where the elements are
   * @param shape the dimensions; by default one, of all elements
   * @return a view
   * @throws IllegalArgumentException if the shape does not fit the array
   */
  public static Tensor of(int[] array, long... shape) {
    return ofArray(array, "array", Convert.notNull(shape, "shape").clone());
  }

  /**
   * As {@link #of(float[], long...)}, of {@link DType#INT64}.
   *
   * @param array where the elements are
   * @param shape the dimensions; by default one, of all elements
   * @return a view
   * @throws IllegalArgumentException if the shape does not fit the array
   */
  public static Tensor of(long[] array, long... shape) {
    return ofArray(array, "array", Convert.notNull(shape, "shape").clone());
  }

  /**
   * As {@link #of(float[], long...)}, of {@link DType#INT8}.
   *
   * @param array where the elements are
   * @param shape the dimensions; by default one, of all elements
   * @return a view
   * @throws IllegalArgumentException if the shape does not fit the array
   */
  public static Tensor of(byte[] array, long... shape) {
    return ofArray(array, "array", Convert.notNull(shape, "shape").clone());
  }

  /**
   * Elements in the memory of a CUDA device, without a copy. The memory is the caller's, as of
   * cudaMalloc: it must stay until every operation on the tensor has ended, which {@code
   * Work.synchronize} or the future of a call tells. Operations are enqueued behind the current
   * stream of this thread, see {@link Streams}, and a blocking form then returns without waiting
   * for the device.
   *
   * @param address where the elements are: row by row without gaps, aligned for their type
   * @param dtype the type of the elements
   * @param shape the dimensions; none at all for a single element
   * @param device the number of the device as CUDA counts in this process
   * @return a view, which has no buffers
   * @throws IllegalArgumentException if a dimension or the device is negative, the address is 0
   *     though there are elements, or not aligned
   */
  public static Tensor ofDevice(long address, DType dtype, long[] shape, int device) {
    final long[] ownShape = Convert.notNull(shape, "shape").clone();
    if (device < 0 || device > MOST_DEVICES) {
      throw new IllegalArgumentException("device must be 0 or more, not " + device);
    }
    if (address % Math.min(Convert.notNull(dtype, "dtype").size(), 8) != 0) {
      throw new IllegalArgumentException(
          "address " + Long.toHexString(address) + " is not aligned for " + dtype);
    }
    final Resource resource = new Resource("Tensor", 0, ignored -> {});
    final Tensor tensor =
        new Tensor(dtype, ownShape, address, resource, Access.READ_WRITE, device + 1);
    if (address == 0 && tensor.count > 0) {
      throw new IllegalArgumentException("address is 0, where " + tensor + " has elements");
    }
    return tensor;
  }

  /** A view of a plain array of numbers, which is called {@code argument} in messages. */
  static Tensor ofArray(Object array, String argument) {
    return ofArray(array, argument, new long[0]);
  }

  /** What C++ returns: {@code owner} is released with the tensor. Called by native code. */
  static Tensor fromNative(long owner, long address, int dtype, long[] shape) {
    final Resource resource = new Resource("Tensor", owner, NativeMemory::releaseOwner);
    final Tensor tensor =
        new Tensor(
            DType.of(dtype & DTYPE_MASK),
            shape,
            address,
            resource,
            Access.READ_WRITE,
            dtype >> DEVICE_SHIFT);
    tensor.cleanable = Cleaners.register(tensor, resource);
    return tensor;
  }

  /**
   * The type of the elements.
   *
   * @return as given when it was made
   */
  public DType dtype() {
    return dtype;
  }

  /**
   * The dimensions.
   *
   * @return a new array
   */
  public long[] shape() {
    return shape.clone();
  }

  /**
   * The number of elements: the product of the dimensions.
   *
   * @return 0 or more
   */
  public long count() {
    return count;
  }

  /**
   * The size of all elements.
   *
   * @return in bytes
   */
  public long bytes() {
    return count * dtype.size();
  }

  /**
   * Whether operations and buffers must not write the elements.
   *
   * @return true for views of read-only buffers
   */
  public boolean isReadOnly() {
    return (type & READ_ONLY) != 0;
  }

  /**
   * Where the elements are.
   *
   * @return the number of a CUDA device; -1 in main memory
   */
  public int device() {
    return (type >> DEVICE_SHIFT) - 1;
  }

  /**
   * The bytes of the elements, in the order of bytes of this machine. The buffer, and all made from
   * it, keep the memory alive.
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if there are 2 GiB or more: see
   * {@link #asByteBuffer(long, int)}; or if this is a view of a plain array, or on a device
   */
  public ByteBuffer asByteBuffer() {
    if (bytes() > Integer.MAX_VALUE) {
      throw new IllegalArgumentException(
          this + " has " + bytes() + " bytes, a buffer 2^31 - 1 at most: use asByteBuffer(offset,"
              + " length)");
    }
    return asByteBuffer(0, (int) bytes());
  }

  /**
   * Some of the bytes of the elements, as {@link #asByteBuffer()}.
   *
   * @param offset the first byte
   * @param length how many
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if this is a view of a plain array, or on a device
   * @throws IndexOutOfBoundsException if the tensor does not have these bytes
   */
  public ByteBuffer asByteBuffer(long offset, int length) {
    if (array != null) {
      throw new IllegalArgumentException(
          this + " is a view of an array, which has no direct buffer: use the array itself");
    }
    if (device() >= 0) {
      throw new IllegalArgumentException(this + ", which main memory does not hold");
    }
    Objects.checkFromIndexSize(offset, (long) length, bytes());
    resource.acquire();
    Reference.reachabilityFence(this); // Else it might be cleaned before it is in use.
    final ByteBuffer buffer;
    try {
      buffer = NativeMemory.buffer(address + offset, length);
      // Buffers made from this one refer to it, so it is the last to become unreachable.
      Cleaners.register(buffer, resource::release);
    } catch (Throwable e) {
      resource.release();
      throw e;
    }
    final ByteBuffer shown = isReadOnly() ? buffer.asReadOnlyBuffer() : buffer;
    return shown.order(ByteOrder.nativeOrder());
  }

  /**
   * The elements of an INT16 tensor (or UINT16, FLOAT16, BFLOAT16, as they are stored).
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if elements are not two bytes long
   */
  public ShortBuffer asShortBuffer() {
    return bufferOf("ShortBuffer", DType.INT16, DType.UINT16, DType.FLOAT16, DType.BFLOAT16)
        .asShortBuffer();
  }

  /**
   * The elements of an INT32 (or UINT32) tensor.
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if elements are of another type
   */
  public IntBuffer asIntBuffer() {
    return bufferOf("IntBuffer", DType.INT32, DType.UINT32).asIntBuffer();
  }

  /**
   * The elements of an INT64 (or UINT64) tensor.
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if elements are of another type
   */
  public LongBuffer asLongBuffer() {
    return bufferOf("LongBuffer", DType.INT64, DType.UINT64).asLongBuffer();
  }

  /**
   * The elements of a FLOAT32 tensor, or of a COMPLEX64 one as pairs.
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if elements are of another type
   */
  public FloatBuffer asFloatBuffer() {
    return bufferOf("FloatBuffer", DType.FLOAT32, DType.COMPLEX64).asFloatBuffer();
  }

  /**
   * The elements of a FLOAT64 tensor, or of a COMPLEX128 one as pairs.
   *
   * @return a new direct buffer over the same memory
   * @throws IllegalArgumentException if elements are of another type
   */
  public DoubleBuffer asDoubleBuffer() {
    return bufferOf("DoubleBuffer", DType.FLOAT64, DType.COMPLEX128).asDoubleBuffer();
  }

  /**
   * Ends the use of this tensor: later uses are an {@link IllegalStateException}. Its memory stays
   * for operations in flight and for buffers over it. Does nothing the second time.
   */
  @Override
  public void close() {
    if (cleanable != null) {
      cleanable.clean();
    } else {
      resource.run();
    }
  }

  /**
   * Type and shape, for messages.
   *
   * @return such as "float32[2, 3]", and on a device "float32[2, 3] on cuda:0"
   */
  @Override
  public String toString() {
    final String described = dtype + Arrays.toString(shape);
    return device() < 0 ? described : described + " on cuda:" + device();
  }

  private static void free(long address, long bytes) {
    NativeMemory.free(address);
    PRESSURE.freed(bytes);
  }

  private static void release(long owner, long bytes) {
    NativeMemory.releaseOwner(owner);
    PRESSURE.freed(bytes);
  }

  private static Tensor owned(Resource resource, DType dtype, long[] shape, long address) {
    final Tensor tensor = new Tensor(dtype, shape, address, resource, Access.READ_WRITE);
    tensor.cleanable = Cleaners.register(tensor, resource);
    return tensor;
  }

  /** A view with this shape, or, if that is empty, with one dimension. */
  private static Tensor view(Buffer buffer, String argument, DType dtype, long[] shape) {
    NativeLibrary.load();
    final long address = Buffers.address(buffer, argument, dtype);
    final long bytes = Buffers.bytes(buffer);
    final long[] actualShape = shape.length > 0 ? shape : new long[] {bytes / dtype.size()};
    if (countOf(dtype, actualShape) * dtype.size() != bytes) {
      throw new IllegalArgumentException(
          argument + " has " + bytes + " bytes between position and limit, which " + dtype
              + Arrays.toString(actualShape) + " does not fit");
    }
    // The resource refers to the buffer, which keeps its memory.
    final Resource resource =
        new Resource("Tensor", 0, ignored -> Reference.reachabilityFence(buffer));
    final Access access = buffer.isReadOnly() ? Access.READ_ONLY : Access.READ_WRITE;
    return new Tensor(dtype, actualShape, address, resource, access);
  }

  /** A view with this shape, or, if that is empty, with one dimension. */
  private static Tensor ofArray(Object array, String argument, long[] shape) {
    final DType dtype = DType.ofArray(Convert.notNull(array, argument));
    final long length = Array.getLength(array);
    final long[] actualShape = shape.length > 0 ? shape : new long[] {length};
    final Tensor tensor = new Tensor(dtype, actualShape, array);
    if (tensor.count != length) {
      throw new IllegalArgumentException(
          argument + " has " + length + " elements, which " + tensor + " does not fit");
    }
    return tensor;
  }

  private ByteBuffer bufferOf(String kind, DType... allowed) {
    if (!Arrays.asList(allowed).contains(dtype)) {
      throw new IllegalArgumentException(
          this + " is no " + kind + ", only one of " + Arrays.toString(allowed)
              + " is; use asByteBuffer()");
    }
    return asByteBuffer();
  }

  /** The product of the dimensions; IllegalArgumentException if it makes no sense. */
  private static long countOf(DType dtype, long[] shape) {
    long count = 1;
    long bytes = dtype.size(); // As if empty dimensions had one element: that must fit, too.
    for (long dimension : shape) {
      if (dimension < 0) {
        throw new IllegalArgumentException(
            "shape " + Arrays.toString(shape) + " has a negative dimension");
      }
      count *= dimension;
      if (Math.multiplyHigh(bytes, Math.max(dimension, 1)) != 0
          || (bytes *= Math.max(dimension, 1)) < 0) {
        throw new IllegalArgumentException(
            dtype + Arrays.toString(shape) + " is larger than the address space; check the shape");
      }
    }
    return count;
  }
}
