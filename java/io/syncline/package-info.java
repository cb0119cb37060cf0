/**
 * Collective communication between processes: process groups, the stores in which they meet, and
 * the gradient reducer of data-parallel training.
 *
 * <p>A process joins a job with {@link io.syncline.World#init}, and calls the operations of its
 * {@link io.syncline.ProcessGroup}, on {@link io.syncline.Tensor}s, which are also views of direct
 * buffers and arrays. All classes may be used from any thread, virtual ones included.
 */
package io.syncline;
