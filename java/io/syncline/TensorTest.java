package io.syncline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.junit.jupiter.api.Test;

class TensorTest {
  private static final ByteOrder NATIVE = ByteOrder.nativeOrder();
  private static final ByteOrder OTHER =
      NATIVE == ByteOrder.LITTLE_ENDIAN ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN;

  @Test
  void aNewTensorIsZeroAlignedAndOfItsShape() {
    for (DType dtype : DType.values()) {
      try (Tensor tensor = Tensor.allocate(dtype, 3, 5)) {
        assertEquals(0, tensor.address % 64);
        assertArrayEquals(new long[] {3, 5}, tensor.shape());
        assertEquals(15, tensor.count());
        assertEquals(15L * dtype.size(), tensor.bytes());
        assertEquals(dtype.name().toLowerCase(Locale.ROOT) + "[3, 5]", tensor.toString());
        final ByteBuffer bytes = tensor.asByteBuffer();
        while (bytes.hasRemaining()) {
          assertEquals(0, bytes.get());
        }
      }
    }
  }

  @Test
  void scalarsAndEmptyTensorsHaveTheirSizes() {
    assertEquals(1, Tensor.allocate(DType.FLOAT32).count());
    assertEquals(0, Tensor.allocate(DType.FLOAT32, 4, 0).count());
    assertEquals(0, Tensor.allocate(DType.FLOAT32, 0).asFloatBuffer().capacity());
  }

  @Test
  void shapesThatMakeNoSenseAreRefused() {
    refused("shape [2, -1] has a negative", () -> Tensor.allocate(DType.INT8, 2, -1));
    refused(
        "float64[4294967296, 4294967296] is larger than the address space",
        () -> Tensor.allocate(DType.FLOAT64, 1L << 32, 1L << 32));
    refused("larger than the address", () -> Tensor.allocate(DType.INT16, 0, Long.MAX_VALUE));
    assertThrows(OutOfMemoryError.class, () -> Tensor.allocate(DType.INT8, Long.MAX_VALUE / 2));
  }

  @Test
  void aSharedTensorIsZeroAlignedAndLivesWithTheBuffersOverIt() {
    for (DType dtype : DType.values()) {
      final ByteBuffer bytes;
      try (Tensor tensor = Tensor.emptyShared(dtype, 300, 5)) {
        assertEquals(0, tensor.address % 64);
        assertArrayEquals(new long[] {300, 5}, tensor.shape());
        bytes = tensor.asByteBuffer();
      }
      assertEquals(1500 * dtype.size(), bytes.remaining());
      for (int i = 0; i < bytes.limit(); i++) {
        assertEquals(0, bytes.get(i));
        bytes.put(i, (byte) 1);
      }
    }
    assertEquals(0, Tensor.emptyShared(DType.FLOAT32, 0, 7).count());
    assertEquals(1, Tensor.emptyShared(DType.COMPLEX128).count());
  }

  @Test
  void sharedTensorsAndBuffersOverThemAreReduced() throws Exception {
    final int count = 300_007; // Enough to be read in place.
    Ranks.run(
        "shm",
        2,
        world -> {
          for (int round = 0; round < 10; round++) { // Each time in new memory.
            try (Tensor tensor = Tensor.emptyShared(DType.FLOAT32, count)) {
              final FloatBuffer elements = tensor.asFloatBuffer();
              for (int i = 0; i < count; i++) {
                elements.put(i, world.rank() + i);
              }
              world.group().allReduce(tensor);
              assertEquals(1 + 2 * 70_000, elements.get(70_000));
              world.group().allReduce(Tensor.of(elements.slice(5, count - 5)));
              assertEquals(1 + 2 * 3, elements.get(3));
              assertEquals(2 * (1 + 2 * (count - 1)), elements.get(count - 1));
            }
          }
          world.group().barrier();
        });
  }

  @Test
  void aSharedTensorThatCannotBeIsAnError() {
    refused("shape [-1] has a negative", () -> Tensor.emptyShared(DType.INT8, -1));
    final var error =
        assertThrows(
            DistBackendException.class, () -> Tensor.emptyShared(DType.FLOAT64, 1L << 40));
    assertTrue(error.getMessage().contains("8589934592 KiB"), error.getMessage());
  }

  @Test
  void buffersOverATensorShareItsElements() {
    final Tensor tensor = Tensor.allocate(DType.INT32, 4);
    tensor.asIntBuffer().put(2, 0x01020304);
    assertEquals(0x01020304, tensor.asByteBuffer().getInt(8));
    assertEquals(NATIVE, tensor.asByteBuffer().order());
    assertEquals(0x01020304, tensor.asByteBuffer(8, 4).getInt(0));
    assertThrows(IndexOutOfBoundsException.class, () -> tensor.asByteBuffer(8, 9));
    assertThrows(IndexOutOfBoundsException.class, () -> tensor.asByteBuffer(-1, 1));
  }

  @Test
  void eachTypeHasItsBuffer() {
    assertEquals(4, Tensor.allocate(DType.INT16, 4).asShortBuffer().capacity());
    assertEquals(4, Tensor.allocate(DType.BFLOAT16, 4).asShortBuffer().capacity());
    assertEquals(4, Tensor.allocate(DType.FLOAT8_E5M2, 4).asByteBuffer().capacity());
    assertEquals(4, Tensor.allocate(DType.UINT64, 4).asLongBuffer().capacity());
    assertEquals(8, Tensor.allocate(DType.COMPLEX64, 4).asFloatBuffer().capacity());
    assertEquals(8, Tensor.allocate(DType.COMPLEX128, 4).asDoubleBuffer().capacity());
    final Tensor ints = Tensor.allocate(DType.INT32, 1);
    refused("int32[1] is no FloatBuffer", ints::asFloatBuffer);
  }

  @Test
  void aBufferIsSeenFromItsPositionToItsLimit() {
    final IntBuffer buffer = direct(40).asIntBuffer();
    for (int i = 0; i < buffer.capacity(); i++) {
      buffer.put(i, i);
    }
    buffer.position(3).limit(7);
    final Tensor tensor = Tensor.of(buffer);
    buffer.clear();
    assertEquals("int32[4]", tensor.toString());
    assertEquals(3, tensor.asIntBuffer().get(0));
    tensor.asIntBuffer().put(3, -1);
    assertEquals(-1, buffer.get(6));
    assertEquals("int32[2, 2]", Tensor.of(buffer.position(3).limit(7), 2, 2).toString());
  }

  @Test
  void theTypeIsTheBuffersOrTheOneGiven() {
    final ByteBuffer bytes = direct(32);
    final List<Buffer> buffers =
        List.of(
            bytes,
            bytes.asShortBuffer(),
            bytes.asIntBuffer(),
            bytes.asLongBuffer(),
            bytes.asFloatBuffer(),
            bytes.asDoubleBuffer());
    final List<String> seen = new ArrayList<>();
    for (Buffer buffer : buffers) {
      seen.add(Tensor.of(buffer).toString());
    }
    assertEquals(
        List.of("int8[32]", "int16[16]", "int32[8]", "int64[4]", "float32[8]", "float64[4]"), seen);
    assertEquals("bfloat16[16]", Tensor.of(bytes, DType.BFLOAT16).toString());
    assertEquals("float8_e4m3fn[32]", Tensor.of(bytes, DType.FLOAT8_E4M3FN).toString());
    assertEquals("complex64[2, 2]", Tensor.of(bytes, DType.COMPLEX64, 2, 2).toString());
  }

  @Test
  void aTensorOnADeviceIsKnownByItsAddressAlone() {
    final Tensor tensor = Tensor.ofDevice(0x1000, DType.FLOAT32, new long[] {2, 3}, 1);
    assertEquals("float32[2, 3] on cuda:1", tensor.toString());
    assertEquals(1, tensor.device());
    assertEquals(DType.FLOAT32, tensor.dtype());
    assertEquals(-1, Tensor.allocate(DType.FLOAT32, 1).device());
    assertEquals(false, tensor.isReadOnly());
    refused("on cuda:1, which main memory does not hold", tensor::asFloatBuffer);
    refused("device must be 0 or more, not -1",
        () -> Tensor.ofDevice(0x1000, DType.FLOAT32, new long[] {1}, -1));
    refused("is not aligned for float32",
        () -> Tensor.ofDevice(0x1002, DType.FLOAT32, new long[] {1}, 0));
    refused("address is 0, where float32[1] on cuda:0 has elements",
        () -> Tensor.ofDevice(0, DType.FLOAT32, new long[] {1}, 0));
    refused("shape [-1] has a negative",
        () -> Tensor.ofDevice(0x1000, DType.FLOAT32, new long[] {-1}, 0));
    assertEquals(0, Tensor.ofDevice(0, DType.INT8, new long[] {0}, 0).count());
  }

  @Test
  void streamsEndInTheReverseOrderOnTheirOwnThread() throws Exception {
    final Streams first = Streams.current(16, 0);
    final Streams second = Streams.current(32);
    assertThrows(IllegalStateException.class, first::close);
    final var thrown = new java.util.concurrent.CompletableFuture<Throwable>();
    final Thread other =
        new Thread(
            () -> {
              try {
                second.close();
                thrown.complete(null);
              } catch (Throwable e) {
                thrown.complete(e);
              }
            });
    other.start();
    assertTrue(thrown.get(60, java.util.concurrent.TimeUnit.SECONDS)
        instanceof IllegalStateException);
    other.join();
    second.close();
    second.close();
    first.close();
    refused("device must be 0 or more", () -> Streams.current(0, -1));
  }

  @Test
  void buffersThatNativeCodeCannotTakeAreRefusedWithTheWayOut() {
    refused("buffer is on the heap", () -> Tensor.of(FloatBuffer.allocate(3)));
    refused("pass a direct buffer", () -> Tensor.of(ByteBuffer.wrap(new byte[3])));
    final FloatBuffer swapped = direct(16).order(OTHER).asFloatBuffer();
    refused("call order(ByteOrder.nativeOrder())", () -> Tensor.of(swapped));
    final ByteBuffer swappedBytes = direct(16).order(OTHER);
    refused("is in the order " + OTHER, () -> Tensor.of(swappedBytes, DType.FLOAT32));
    assertEquals("uint8[16]", Tensor.of(swappedBytes, DType.UINT8).toString());
    final ByteBuffer odd = direct(17).position(1).slice().order(NATIVE);
    refused("slice it at another position", () -> Tensor.of(odd.asIntBuffer()));
    refused("CharBuffer", () -> Tensor.of(direct(16).asCharBuffer()));
    refused("CharBuffer", () -> Tensor.of(CharBuffer.allocate(3)));
    refused(
        "16 bytes between position and limit, which float32[5] does not fit",
        () -> Tensor.of(direct(16).asFloatBuffer(), 5));
    refused("does not fit", () -> Tensor.of(direct(15), DType.FLOAT32));
    assertThrows(NullPointerException.class, () -> Tensor.of((Buffer) null));
  }

  @Test
  void anArgumentThatIsNullIsNamed() {
    missing("shape", () -> Tensor.allocate(DType.INT8, (long[]) null));
    missing("dtype", () -> Tensor.allocate(null, 1));
    missing("shape", () -> Tensor.of(direct(4), (long[]) null));
    missing("shape", () -> Tensor.of(direct(4), DType.INT8, (long[]) null));
    missing("buffer", () -> Tensor.of((Buffer) null));
  }

  @Test
  void anArrayIsATensorOfItsType() {
    final List<Tensor> tensors =
        List.of(
            Tensor.of(new float[6], 2, 3),
            Tensor.of(new double[6], 2, 3),
            Tensor.of(new int[6], 2, 3),
            Tensor.of(new long[6], 2, 3),
            Tensor.of(new byte[6], 2, 3));
    final List<DType> types =
        List.of(DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.INT8);
    assertEquals(types, tensors.stream().map(Tensor::dtype).toList());
    for (Tensor tensor : tensors) {
      assertArrayEquals(new long[] {2, 3}, tensor.shape());
      refused("use the array itself", tensor::asByteBuffer);
    }
    assertArrayEquals(new long[] {6}, Tensor.of(new long[6]).shape());
    refused("array has 6 elements, which float32[5]", () -> Tensor.of(new float[6], 5));
    missing("array", () -> Tensor.of((float[]) null));
    missing("shape", () -> Tensor.of(new float[1], (long[]) null));
  }

  @Test
  void whatAnOperationWritesToAnArrayIsThereAfterwards() {
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      final int[] input = {1, 2};
      final int[] output = new int[2];
      final Tensor view = Tensor.of(output);
      world.group().allGatherSingle(view, Tensor.of(input));
      assertArrayEquals(input, output);
      input[0] = 3; // Each operation sees the array as it is by then.
      world.group().allGatherAsync(List.of(view), Tensor.of(input)).join();
      assertArrayEquals(new int[] {3, 2}, output);
      view.close();
      assertThrows(IllegalStateException.class, () -> world.group().allReduce(view));
    }
  }

  @Test
  void readOnlyBuffersStayReadOnly() {
    final Tensor tensor = Tensor.of(direct(8).asFloatBuffer().asReadOnlyBuffer());
    assertTrue(tensor.isReadOnly());
    assertTrue(tensor.asFloatBuffer().isReadOnly());
    assertTrue(tensor.asByteBuffer(0, 4).isReadOnly());
    assertFalse(Tensor.allocate(DType.INT8, 1).isReadOnly());
    assertFalse(Tensor.allocate(DType.INT8, 1).asByteBuffer().isReadOnly());
  }

  @Test
  void aClosedTensorIsNotUsedAnyMore() {
    final Tensor tensor = Tensor.allocate(DType.FLOAT32, 4);
    tensor.close();
    tensor.close();
    final var error = assertThrows(IllegalStateException.class, tensor::asByteBuffer);
    assertEquals("this Tensor has been closed", error.getMessage());
    final Tensor view = Tensor.of(direct(4));
    view.close();
    assertThrows(IllegalStateException.class, view::asByteBuffer);
  }

  @Test
  void aBufferKeepsTheMemoryOfAClosedTensor() {
    final int count = 1 << 16;
    final Tensor tensor = Tensor.allocate(DType.INT64, count);
    tensor.asLongBuffer().put(count - 1, 7);
    var buffer = tensor.asByteBuffer().asLongBuffer().duplicate();
    tensor.close();
    for (int i = 0; i < 20; i++) { // Anything freed would be taken again and overwritten.
      System.gc();
      Tensor.allocate(DType.INT64, count).asLongBuffer().put(count - 1, 1);
    }
    assertEquals(7, buffer.get(count - 1));
  }

  @Test
  void theNumbersOfTheTypesAreThoseOfCpp() {
    final List<String> names = new ArrayList<>();
    for (DType dtype : DType.values()) {
      names.add(dtype.toString());
    }
    names.sort(null);
    final List<String> known = new ArrayList<>(Info.dtypes("local", "broadcast"));
    known.sort(null);
    assertEquals(known, names);
    try (World world = World.init("local", "", HashStore.create(), 0, 1)) {
      for (DType dtype : DType.values()) {
        final var work = world.group().broadcastAsync(Tensor.allocate(dtype, 3), 0).work();
        assertTrue(work.description().contains(dtype + "[3]"), work.description());
        work.await();
      }
    }
  }

  private static ByteBuffer direct(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(NATIVE);
  }

  private static void missing(String name, org.junit.jupiter.api.function.Executable call) {
    final var error = assertThrows(NullPointerException.class, call);
    assertEquals(name + " must not be null", error.getMessage());
  }

  private static void refused(String message, org.junit.jupiter.api.function.Executable call) {
    final var error = assertThrows(IllegalArgumentException.class, call);
    assertTrue(error.getMessage().contains(message), error.getMessage());
  }
}
