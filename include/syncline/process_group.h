// A group of ranks that communicate: what users hold.
#ifndef SYNCLINE_PROCESS_GROUP_H_
#define SYNCLINE_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/device.h"
#include "syncline/peer.h"
#include "syncline/reduce_op.h"
#include "syncline/store.h"
#include "syncline/tensor.h"
#include "syncline/work.h"

namespace syncline {

namespace group {
class ChildCommunicators;
}

inline constexpr absl::Duration kDefaultTimeout = absl::Minutes(30);

// One rank's end of a group. Checks, numbers and orders every operation and hands it to its
// backend. Thread-safe: operations take effect in the order in which each rank issues them, and
// all ranks must issue the same collectives in the same order. send and recv are ordered for each
// peer, direction and tag only. Those in the background take a thread for each of these, which ends
// soon after the last.
//
// Tensors must be contiguous, on a device that the backend serves, and those of one call on one
// device (except in the Multi forms). An argument that is not acceptable is
// an ArgumentError or TypeError before any byte moves, and the group goes on. Any other error
// breaks the group: the operation that met it returns it, all later ones fail at once and quote
// it. `timeout`, where given, replaces the group's and counts from the call.
//
// The `Async` form of an operation returns at once. Until the Work has completed, or the group is
// closed, the memory of its tensors must stay alive and untouched; views of a std::vector do not
// keep it alive. Nothing waits when a Work is forgotten. A `timeout` must be positive.
//
// Calls on tensors of a device are work of its streams: they begin behind what this thread has
// enqueued on its current stream (see stream.h), return once they are enqueued, and what is
// enqueued there afterwards begins behind them. The host does not wait; an error that shows later,
// a timeout or a rank that was lost, fails the group, and later calls return it. The group keeps
// the tensors until then. Where the backend works in memory of the host, the host waits too.
// docs/cuda.md has the rest.
//
// In a child that was forked since the group was made, every operation is a BackendError, and the
// group's resources are left to the parent.
//
//   std::shared_ptr<ProcessGroup> group = world->group();
//   SYNCLINE_RETURN_IF_ERROR(group->AllReduce(gradients, ReduceOp::kAvg));
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Work> work, group->BroadcastAsync(weights, 0));
//   ...                                      // `weights` stays untouched.
//   SYNCLINE_RETURN_IF_ERROR(work->Wait());  // "rank 0 of group 'default': broadcast #1: ..."
class ProcessGroup {
 public:
  using Timeout = std::optional<absl::Duration>;
  using Tensors = std::vector<Tensor>;
  using Splits = std::vector<int64_t>;
  using StartedWork = absl::StatusOr<std::shared_ptr<Work>>;

  struct Options {
    std::string backend = "auto";  // Or one for each device: "cpu:gloo,cuda:nccl".
    std::shared_ptr<Store> store;  // Private to the group.
    int rank = 0;
    int size = 1;
    std::vector<int> ranks;  // The world's ranks of the members; empty: 0 to size - 1.
    absl::Duration timeout = kDefaultTimeout;  // For each operation.
    Timeout connect_timeout;                   // For connecting; as for operations if not given.
    std::string name = "default";
    std::string local_address = "127.0.0.1";      // Where peers reach this host.
    std::vector<std::string> more_addresses;      // Of its other interfaces, to share the load.
    std::optional<MismatchCheck> mismatch_check;  // If not given, what SYNCLINE_DEBUG says.
    // The members' processes, by rank, so that the death of one ends the wait for it; empty: these
    // are not known.
    std::vector<Peer> peers;
    // The device whose tensors this rank will pass. Backend nccl then makes its communicator with
    // the group, and those of groups that are split off it from that one; other backends ignore it.
    // All ranks give one, or none does.
    std::optional<Device> device_id = {};
    // Of Split and World::NewGroup: what the parent's backend has made for this group.
    std::shared_ptr<ChildCommunicator> communicator = nullptr;
  };

  // Connects; returns once all ranks have. An unknown backend is an ArgumentError that lists those
  // there are.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Create(const Options& options);

  // Aborts what is in flight, here and on the peers, which get an error that says so. A rank that
  // is done calls Close first.
  ~ProcessGroup();

  int rank() const;
  int size() const;
  const std::string& name() const;
  const std::string& backend() const;
  absl::Duration timeout() const;
  // Changes it for the operations that this rank calls from now on.
  absl::Status SetTimeout(absl::Duration timeout);
  // The world's rank of each member, in the order of their ranks in the group.
  const std::vector<int>& ranks() const;
  const Options& options() const;

  // The two ways of every operation, of which the functions below are short forms: on the calling
  // thread (if nothing else is in turn before it), and in the background. Run returns the rank that
  // sent, for a receive, else 0.
  //
  //   const auto work = group->Start(Collective::AllReduce(gradients, ReduceOp::kSum));
  absl::StatusOr<int> Run(const Collective& collective, Timeout timeout = {});
  StartedWork Start(Collective collective, Timeout timeout = {});

  // Copies `root`'s tensor over every other rank's.
  absl::Status Broadcast(const Tensor& tensor, int root, Timeout timeout = {});
  StartedWork BroadcastAsync(const Tensor& tensor, int root, Timeout timeout = {});

  // Replaces `tensor` on every rank by its elementwise reduction over all ranks. Bitwise equal on
  // all ranks. `factor` goes with premul_sum only, here and below: this rank's elements are
  // multiplied by it first; it may differ between ranks.
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                         double factor = 1.0);
  StartedWork AllReduceAsync(const Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                             Timeout timeout = {}, double factor = 1.0);

  // The same on `root` only; other ranks' tensors keep their elements.
  absl::Status Reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
                      Timeout timeout = {}, double factor = 1.0);
  StartedWork ReduceAsync(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
                          Timeout timeout = {}, double factor = 1.0);

  // Copies every rank's `input` to outputs[its rank], which has that input's size; sizes may
  // differ between ranks. outputs[own rank] may be the input itself.
  absl::Status AllGather(const Tensors& outputs, const Tensor& input, Timeout timeout = {});
  StartedWork AllGatherAsync(const Tensors& outputs, const Tensor& input, Timeout timeout = {});

  // The same into one tensor of size() times the input's elements.
  absl::Status AllGatherSingle(const Tensor& output, const Tensor& input, Timeout timeout = {});
  StartedWork AllGatherSingleAsync(const Tensor& output, const Tensor& input, Timeout timeout = {});

  // Copies every rank's `input`, all of one size, to outputs[its rank] of `root`; the other ranks
  // pass no outputs.
  absl::Status Gather(const Tensors& outputs, const Tensor& input, int root, Timeout timeout = {});
  StartedWork GatherAsync(const Tensors& outputs, const Tensor& input, int root,
                          Timeout timeout = {});

  // Copies inputs[r] of `root` to rank r's `output`, all of one size; the other ranks pass no
  // inputs.
  absl::Status Scatter(const Tensor& output, const Tensors& inputs, int root, Timeout timeout = {});
  StartedWork ScatterAsync(const Tensor& output, const Tensors& inputs, int root,
                           Timeout timeout = {});

  // Reduces inputs[r] of all ranks to rank r's `output`. Sizes of inputs[r] may differ with r.
  absl::Status ReduceScatter(const Tensor& output, const Tensors& inputs,
                             ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                             double factor = 1.0);
  StartedWork ReduceScatterAsync(const Tensor& output, const Tensors& inputs,
                                 ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                 double factor = 1.0);

  // The same from one tensor of size() times the output's elements.
  absl::Status ReduceScatterSingle(const Tensor& output, const Tensor& input,
                                   ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                   double factor = 1.0);
  StartedWork ReduceScatterSingleAsync(const Tensor& output, const Tensor& input,
                                       ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                       double factor = 1.0);

  // Replaces `tensor` on rank r by the elementwise reduction over the ranks 0 to r, in that order
  // (MPI_Scan). An average is an ArgumentError.
  absl::Status Scan(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                    double factor = 1.0);
  StartedWork ScanAsync(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                        double factor = 1.0);

  // The same over the ranks 0 to r - 1 (MPI_Exscan); the tensor of rank 0 keeps its elements.
  absl::Status Exscan(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                      double factor = 1.0);
  StartedWork ExscanAsync(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                          double factor = 1.0);

  // Copies inputs[r] to outputs[own rank] of rank r. Sizes may differ from pair to pair.
  absl::Status AllToAll(const Tensors& outputs, const Tensors& inputs, Timeout timeout = {});
  StartedWork AllToAllAsync(const Tensors& outputs, const Tensors& inputs, Timeout timeout = {});

  // The same between parts of single tensors, split along the first dimension; without splits
  // into size() equal parts.
  absl::Status AllToAllSingle(const Tensor& output, const Tensor& input,
                              const Splits& output_splits = {}, const Splits& input_splits = {},
                              Timeout timeout = {});
  StartedWork AllToAllSingleAsync(const Tensor& output, const Tensor& input,
                                  const Splits& output_splits = {}, const Splits& input_splits = {},
                                  Timeout timeout = {});

  // Several tensors in one transfer. outputs[i * size() + r] receives inputs[i] of rank r;
  // inputs[i * size() + r] goes to outputs[i] of rank r. Those that reduce take one element type.
  // All ranks must pass as many tensors, of the same types and sizes in the same order. Nothing
  // that is written may share memory, except what a rank passes to itself.
  absl::Status BroadcastCoalesced(const Tensors& tensors, int root, Timeout timeout = {});
  StartedWork BroadcastCoalescedAsync(const Tensors& tensors, int root, Timeout timeout = {});
  absl::Status AllReduceCoalesced(const Tensors& tensors, ReduceOp op = ReduceOp::kSum,
                                  Timeout timeout = {}, double factor = 1.0);
  StartedWork AllReduceCoalescedAsync(const Tensors& tensors, ReduceOp op = ReduceOp::kSum,
                                      Timeout timeout = {}, double factor = 1.0);
  absl::Status AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs,
                                  Timeout timeout = {});
  StartedWork AllGatherCoalescedAsync(const Tensors& outputs, const Tensors& inputs,
                                      Timeout timeout = {});
  absl::Status ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                      ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                      double factor = 1.0);
  StartedWork ReduceScatterCoalescedAsync(const Tensors& outputs, const Tensors& inputs,
                                          ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                          double factor = 1.0);

  // n tensors of equal type and size in each process, as if each were a rank's own: process r has
  // the places r * n to r * n + n - 1. outputs[i * n * size() + p] receives, for the i-th tensor,
  // that of place p; inputs[i * n * size() + p] is what the i-th tensor adds to place p.
  absl::Status BroadcastMulti(const Tensors& tensors, int root, int64_t root_tensor = 0,
                              Timeout timeout = {});
  StartedWork BroadcastMultiAsync(const Tensors& tensors, int root, int64_t root_tensor = 0,
                                  Timeout timeout = {});
  absl::Status AllReduceMulti(const Tensors& tensors, ReduceOp op = ReduceOp::kSum,
                              Timeout timeout = {}, double factor = 1.0);
  StartedWork AllReduceMultiAsync(const Tensors& tensors, ReduceOp op = ReduceOp::kSum,
                                  Timeout timeout = {}, double factor = 1.0);
  absl::Status ReduceMulti(const Tensors& tensors, int root, ReduceOp op = ReduceOp::kSum,
                           int64_t root_tensor = 0, Timeout timeout = {}, double factor = 1.0);
  StartedWork ReduceMultiAsync(const Tensors& tensors, int root, ReduceOp op = ReduceOp::kSum,
                               int64_t root_tensor = 0, Timeout timeout = {}, double factor = 1.0);
  absl::Status AllGatherMulti(const Tensors& outputs, const Tensors& inputs, Timeout timeout = {});
  StartedWork AllGatherMultiAsync(const Tensors& outputs, const Tensors& inputs,
                                  Timeout timeout = {});
  absl::Status ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs,
                                  ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                  double factor = 1.0);
  StartedWork ReduceScatterMultiAsync(const Tensors& outputs, const Tensors& inputs,
                                      ReduceOp op = ReduceOp::kSum, Timeout timeout = {},
                                      double factor = 1.0);

  // Returns once every rank has called it.
  absl::Status Barrier(Timeout timeout = {});
  StartedWork BarrierAsync(Timeout timeout = {});

  // The same over the store, for finding out who is missing: on timeout all ranks that came,
  // and those that come later, get a TimeoutError that names every rank that did not.
  absl::Status MonitoredBarrier(Timeout timeout = {});

  // Sends to `dst`; receives from `src`, or from any rank with kAnySource, a tensor of the same
  // type and size. Recv returns the rank that sent; of RecvAsync, Work::source_rank does.
  absl::Status Send(const Tensor& tensor, int dst, int64_t tag = 0, Timeout timeout = {});
  StartedWork SendAsync(const Tensor& tensor, int dst, int64_t tag = 0, Timeout timeout = {});
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, int64_t tag = 0, Timeout timeout = {});
  StartedWork RecvAsync(const Tensor& tensor, int src, int64_t tag = 0, Timeout timeout = {});

  // OK, or why the group can no longer be used, in this process.
  absl::Status status() const;

  // Ends the group: waits up to `timeout` for this rank's operations in flight, then aborts them.
  // Later calls fail. Idempotent.
  void Close(absl::Duration timeout = absl::Seconds(10));

  // Ends the group at once; operations in flight, here and on the peers, fail with `reason`.
  void Abort(absl::string_view reason);

  // OK, or a BackendError in a child that was forked since the group was made.
  absl::Status CheckProcess() const;

 private:
  class Impl;                              // core/group/process_group_impl.h
  friend class group::ChildCommunicators;  // core/group/child_communicators.h
  explicit ProcessGroup(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline

#endif  // SYNCLINE_PROCESS_GROUP_H_
