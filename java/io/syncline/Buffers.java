package io.syncline;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** Where the elements of direct buffers are. */
final class Buffers {
  private Buffers() {}

  /** The size of what lies between position and limit. */
  static long bytes(Buffer buffer) {
    return (long) buffer.remaining() * elementSize(buffer);
  }

  /**
   * The address of the element at the buffer's position. IllegalArgumentException if native code
   * cannot take it for one of {@code dtype}.
   */
  static long address(Buffer buffer, String argument, DType dtype) {
    if (!buffer.isDirect()) {
      throw new IllegalArgumentException(
          argument + " is on the heap, where native code cannot stay: pass a direct buffer"
              + " (ByteBuffer.allocateDirect), or Tensor.of(array)");
    }
    if (dtype.size() > 1 && order(buffer) != ByteOrder.nativeOrder()) {
      throw new IllegalArgumentException(
          argument + " is in the order " + order(buffer) + ", this machine's is "
              + ByteOrder.nativeOrder() + ": call order(ByteOrder.nativeOrder()) on the ByteBuffer"
              + (buffer instanceof ByteBuffer ? "" : " before making a view of it"));
    }
    final long start = NativeMemory.address(buffer);
    final long address = start + (long) buffer.position() * elementSize(buffer);
    if (address % Math.min(dtype.size(), Long.BYTES) != 0) {
      throw new IllegalArgumentException(
          argument + " begins at an address that is no multiple of the " + dtype.size()
              + " bytes of a " + dtype + ": slice it at another position");
    }
    return address;
  }

  private static int elementSize(Buffer buffer) {
    return DType.ofBuffer(buffer, "buffer").size();
  }

  private static ByteOrder order(Buffer buffer) {
    if (buffer instanceof ByteBuffer bytes) {
      return bytes.order();
    } else if (buffer instanceof ShortBuffer shorts) {
      return shorts.order();
    } else if (buffer instanceof IntBuffer ints) {
      return ints.order();
    } else if (buffer instanceof LongBuffer longs) {
      return longs.order();
    } else if (buffer instanceof FloatBuffer floats) {
      return floats.order();
    }
    return ((DoubleBuffer) buffer).order();
  }
}
