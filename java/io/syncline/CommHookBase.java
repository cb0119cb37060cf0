package io.syncline;

import java.util.function.LongConsumer;

/** What CommHook has besides what all languages have. */
abstract class CommHookBase extends NativeHandle {
  static {
    NativeLibrary.load();
  }

  CommHookBase(long pointer, LongConsumer free) {
    super(pointer, free);
  }

  /**
   * A hook that averages each bucket by a call of {@code averager}, on a thread of its own, one
   * bucket after another. What it throws is what the reducer's {@code finish} throws, on all ranks:
   * their operations in the hook's group fail and quote it. It ends the reducer's group, too.
   *
   * @param name for messages and statistics; equal on all ranks
   * @param averager called for the same buckets in the same order on all ranks
   * @return the hook
   */
  public static CommHook of(String name, BucketAverager averager) {
    Convert.notNull(averager, "averager");
    return new CommHook(create(Convert.utf8(name, "name"), averager));
  }

  private static native long create(byte[] name, BucketAverager averager);

  /** Called by native code, with pointers that this call is to free. */
  private static void run(BucketAverager averager, long bucket, long group) throws Exception {
    final GradBucket ofCall = new GradBucket(bucket);
    final ProcessGroup groupOfCall = new ProcessGroup(group);
    try {
      averager.average(ofCall, groupOfCall);
    } finally {
      ofCall.resource.run();
      groupOfCall.resource.run(); // Only the handle: close() would end the group.
    }
  }
}
