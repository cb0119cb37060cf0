package io.syncline;

import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Memory outside the heap for copies of arrays, in blocks whose sizes are powers of two. Up to
 * {@value #KEPT_BYTES} bytes stay for the next call.
 */
final class StagingPool {
  static final long KEPT_BYTES = 256 << 20;
  private static final int SMALLEST = 8; // 256 bytes.
  private static final AtomicLong kept = new AtomicLong();

  @SuppressWarnings({"unchecked", "rawtypes"})
  private static final ConcurrentLinkedDeque<Long>[] blocks = new ConcurrentLinkedDeque[64];

  static {
    for (int i = 0; i < blocks.length; i++) {
      blocks[i] = new ConcurrentLinkedDeque<>();
    }
  }

  private StagingPool() {}

  /**
   * At least so many bytes, 64-byte aligned, of any content; they come back when they are closed.
   */
  static Resource take(long bytes) {
    final int power = Math.max(SMALLEST, 64 - Long.numberOfLeadingZeros(Math.max(bytes, 1) - 1));
    final Long address = blocks[power].pollFirst();
    if (address != null) {
      kept.addAndGet(-(1L << power));
    }
    final long block = address != null ? address : NativeMemory.allocate(1L << power);
    return new Resource("copy of an array", block, pointer -> give(pointer, power));
  }

  static long keptBytes() {
    return kept.get();
  }

  private static void give(long address, int power) {
    if (kept.addAndGet(1L << power) <= KEPT_BYTES) {
      blocks[power].addFirst(address);
    } else {
      kept.addAndGet(-(1L << power));
      NativeMemory.free(address);
    }
  }
}
