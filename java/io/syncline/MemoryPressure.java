package io.syncline;

import java.util.concurrent.atomic.AtomicLong;

/**
 * When to look for forgotten tensors. The garbage collector does not see their memory and would let
 * it pile up; so it is asked to collect each time the memory in use has grown by a bound, or has
 * doubled since the least of late if that is more. Tensors that are closed in time never get there.
 */
final class MemoryPressure {
  private final long bound;
  private final Runnable collect;
  private final AtomicLong inUse = new AtomicLong();
  private volatile long least; // Since the last collection. Approximate when threads race.

  MemoryPressure(long bound, Runnable collect) {
    this.bound = bound;
    this.collect = collect;
  }

  void allocated(long bytes) {
    final long now = inUse.addAndGet(bytes);
    if (now - least >= Math.max(bound, least)) {
      least = now;
      collect.run();
    }
  }

  void freed(long bytes) {
    final long now = inUse.addAndGet(-bytes);
    if (now < least) {
      least = now;
    }
  }
}
