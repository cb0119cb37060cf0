package io.syncline;

/** A communication hook of one's own: see {@link CommHook#of}. */
@FunctionalInterface
public interface BucketAverager {
  /**
   * Replaces the bucket's buffer by the sum of all ranks' buffers, divided by the bucket's divisor.
   *
   * @param bucket this rank's gradients; not to be used after the call
   * @param group the reducer's ranks, for this hook's operations only; not to be used after the
   *     call
   * @throws Exception what went wrong; all ranks are told of it
   */
  void average(GradBucket bucket, ProcessGroup group) throws Exception;
}
