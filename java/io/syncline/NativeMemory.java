package io.syncline;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/** Memory outside the heap, as native code sees it. */
final class NativeMemory {
  static {
    NativeLibrary.load();
  }

  private NativeMemory() {}

  /** So many bytes, 64-byte aligned; OutOfMemoryError if there are none. */
  static native long allocate(long bytes);

  static native long allocateZeros(long bytes);

  static native void free(long address);

  /** Zeros that peers can map, see include/syncline/shared_memory.h: owner, for releaseOwner, and address. */
  static native long[] allocateShared(int dtype, long[] shape);

  /** The handle of a tensor, see include/syncline/shared_memory.h, in UTF-8. */
  static native byte[] sharedHandle(long address, int type, long[] shape);

  static native Tensor openShared(byte[] handle);

  /** Lets go of what keeps the memory of a tensor of C++ alive. */
  static native void releaseOwner(long owner);

  /** Where a direct buffer begins, whatever its position. */
  static native long address(Buffer buffer);

  /** A buffer over memory that it does not keep alive. */
  static native ByteBuffer buffer(long address, int length);

  /** Copies all elements of an array of numbers, whose DType's number is given. */
  static native void copyIn(Object array, int dtype, long address);

  static native void copyOut(long address, int dtype, Object array);

  /** Makes a stream the current one of a device on this thread: what leaveStream needs. */
  static native long enterStream(long stream, int device);

  static native void leaveStream(long scope);
}
