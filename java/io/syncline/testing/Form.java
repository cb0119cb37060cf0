package io.syncline.testing;

import io.syncline.DType;
import io.syncline.Tensor;
import java.lang.reflect.Array;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.List;
import java.util.stream.IntStream;

/** What tensors are made of. */
public enum Form {
  TENSOR(Tensor.class),
  BUFFER(Buffer.class),
  FLOATS(float[].class),
  DOUBLES(double[].class),
  INTS(int[].class),
  LONGS(long[].class),
  BYTES(byte[].class);

  private final Class<?> type;

  Form(Class<?> type) {
    this.type = type;
  }

  /** Whether operations that are used most with plain arrays take this as it is. */
  public boolean isTakenAsItIs() {
    return type.isArray() && this != BYTES;
  }

  /** What a tensor of small integers is made of. */
  public Object of(double... values) {
    if (this == TENSOR) {
      final Tensor tensor = Tensor.allocate(DType.FLOAT64, values.length);
      tensor.asDoubleBuffer().put(values);
      return tensor;
    } else if (this == BUFFER) {
      final FloatBuffer buffer = direct(values.length + 3);
      for (int i = 0; i < values.length; i++) {
        buffer.put(2 + i, (float) values[i]);
      }
      return buffer.position(2).limit(2 + values.length);
    }
    final Object array = Array.newInstance(type.componentType(), values.length);
    for (int i = 0; i < values.length; i++) {
      set(array, i, values[i]);
    }
    return array;
  }

  /** The tensor, or the list of tensors, over what {@link #of} made; anything else as it is. */
  public static Object tensors(Object made) {
    if (made instanceof List<?> list) {
      return list.stream().map(Form::tensors).toList();
    } else if (made instanceof Buffer buffer) {
      return Tensor.of(buffer);
    } else if (made instanceof float[] array) {
      return Tensor.of(array);
    } else if (made instanceof double[] array) {
      return Tensor.of(array);
    } else if (made instanceof int[] array) {
      return Tensor.of(array);
    } else if (made instanceof long[] array) {
      return Tensor.of(array);
    } else if (made instanceof byte[] array) {
      return Tensor.of(array);
    }
    return made;
  }

  /** The elements of what {@link #of} made. */
  public static double[] values(Object tensor) {
    if (tensor instanceof Tensor own) {
      final double[] values = new double[(int) own.count()];
      own.asDoubleBuffer().get(values);
      return values;
    } else if (tensor instanceof FloatBuffer buffer) {
      return IntStream.range(buffer.position(), buffer.limit()).mapToDouble(buffer::get).toArray();
    }
    return IntStream.range(0, Array.getLength(tensor))
        .mapToDouble(i -> Array.getDouble(tensor, i))
        .toArray();
  }

  /** The same of each of a list. */
  public static double[][] allValues(List<?> list) {
    return list.stream().map(Form::values).toArray(double[][]::new);
  }

  /** A direct buffer in the order of bytes of this machine. */
  public static FloatBuffer direct(int elements) {
    return ByteBuffer.allocateDirect(4 * elements).order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  private void set(Object array, int index, double value) {
    switch (this) {
      case FLOATS -> Array.setFloat(array, index, (float) value);
      case DOUBLES -> Array.setDouble(array, index, value);
      case INTS -> Array.setInt(array, index, (int) value);
      case LONGS -> Array.setLong(array, index, (long) value);
      default -> Array.setByte(array, index, (byte) value);
    }
  }
}
