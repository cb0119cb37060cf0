package io.syncline;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Locale;

/** The element types of tensors. All ranks must use the same for one operation. */
public enum DType {
  /** One byte, 0 or 1. */
  BOOL(1),
  /** A {@code byte}. */
  INT8(1),
  /** A {@code short}. */
  INT16(2),
  /** An {@code int}. */
  INT32(4),
  /** A {@code long}. */
  INT64(8),
  /** One byte, unsigned. */
  UINT8(1),
  /** Two bytes, unsigned. */
  UINT16(2),
  /** Four bytes, unsigned. */
  UINT32(4),
  /** Eight bytes, unsigned. */
  UINT64(8),
  /** IEEE 754 half precision. */
  FLOAT16(2),
  /** The upper half of a {@code float}. */
  BFLOAT16(2),
  /** A {@code float}. */
  FLOAT32(4),
  /** A {@code double}. */
  FLOAT64(8),
  /** Two {@code float}s: the real part and the imaginary. */
  COMPLEX64(8),
  /** Two {@code double}s: the real part and the imaginary. */
  COMPLEX128(16),
  /**
   * Eight bits: four of the exponent, without infinities ("float8_e4m3fn"). Moved by all backends,
   * reduced by none on the CPU.
   */
  FLOAT8_E4M3FN(1),
  /** Eight bits: five of the exponent; moved and reduced as {@link #FLOAT8_E4M3FN}. */
  FLOAT8_E5M2(1);

  private static final DType[] ALL = values();

  private final int size;

  DType(int size) {
    this.size = size;
  }

  /**
   * The bytes of one element.
   *
   * @return 1 to 16
   */
  public int size() {
    return size;
  }

  /**
   * Its name as in messages and in the other languages: "float32".
   *
   * @return the name in lower case
   */
  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }

  /** The inverse of ordinal(). */
  static DType of(int ordinal) {
    return ALL[ordinal];
  }

  static DType ofArray(Object array) {
    if (array instanceof float[]) {
      return FLOAT32;
    } else if (array instanceof double[]) {
      return FLOAT64;
    } else if (array instanceof int[]) {
      return INT32;
    } else if (array instanceof long[]) {
      return INT64;
    } else if (array instanceof byte[]) {
      return INT8;
    }
    throw new IllegalArgumentException("no element type for " + array.getClass().getTypeName());
  }

  static DType ofBuffer(Buffer buffer, String argument) {
    if (buffer instanceof FloatBuffer) {
      return FLOAT32;
    } else if (buffer instanceof DoubleBuffer) {
      return FLOAT64;
    } else if (buffer instanceof IntBuffer) {
      return INT32;
    } else if (buffer instanceof LongBuffer) {
      return INT64;
    } else if (buffer instanceof ByteBuffer) {
      return INT8;
    } else if (buffer instanceof ShortBuffer) {
      return INT16;
    }
    throw new IllegalArgumentException(
        argument + " must not be a CharBuffer: characters cannot be sent; pass their bytes");
  }
}
