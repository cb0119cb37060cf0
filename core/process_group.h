// A group of ranks that communicate: what users hold.
#ifndef SYNCLINE_CORE_PROCESS_GROUP_H_
#define SYNCLINE_CORE_PROCESS_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/backend.h"
#include "core/lane.h"
#include "core/operation.h"
#include "core/reduce_op.h"
#include "core/store.h"
#include "core/tensor.h"
#include "core/work.h"

namespace syncline {

inline constexpr absl::Duration kDefaultTimeout = absl::Minutes(30);

// One rank's end of a group. Checks, numbers and orders every operation and hands it to its
// backend. Thread-safe: operations take effect in the order in which each rank issues them, and
// all ranks must issue the same collectives in the same order. send and recv are ordered for each
// peer, direction and tag only.
//
// Tensors must be contiguous and on a device of the backend. An argument that is not acceptable is
// an ArgumentError or TypeError before any byte moves, and the group goes on. Any other error
// breaks the group: the operation that met it returns it, all later ones fail at once and quote
// it. `timeout`, where given, replaces the group's and counts from the call.
//
// The `Async` form of an operation returns at once; the tensors must then stay untouched until the
// Work has completed.
class ProcessGroup {
 public:
  using Timeout = std::optional<absl::Duration>;

  struct Options {
    std::string backend = "gloo";
    std::shared_ptr<Store> store;  // Private to the group.
    int rank = 0;
    int size = 1;
    absl::Duration timeout = kDefaultTimeout;  // For each operation.
    Timeout connect_timeout;                   // For connecting; as for operations if not given.
    std::string name = "default";
    std::string local_address = "127.0.0.1";  // Where peers reach this host.
  };

  // Connects; returns once all ranks have. An unknown backend is an ArgumentError that lists those
  // there are.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Create(const Options& options);

  ~ProcessGroup();  // Aborts what is in flight.

  int64_t rank() const { return options_.rank; }
  int64_t size() const { return options_.size; }
  const std::string& name() const { return options_.name; }
  const std::string& backend() const { return options_.backend; }
  absl::Duration timeout() const { return options_.timeout; }

  // Copies `root`'s tensor over every other rank's.
  absl::Status Broadcast(const Tensor& tensor, int64_t root, Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> BroadcastAsync(const Tensor& tensor, int64_t root,
                                                       Timeout timeout = {});

  // Replaces `tensor` on every rank by its elementwise reduction over all ranks. Bitwise equal on
  // all ranks.
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> AllReduceAsync(const Tensor& tensor,
                                                       ReduceOp op = ReduceOp::kSum,
                                                       Timeout timeout = {});

  // Copies every rank's `input` to outputs[its rank]. One output for each rank, each of the
  // input's type and number of elements.
  absl::Status AllGather(const std::vector<Tensor>& outputs, const Tensor& input,
                         Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> AllGatherAsync(const std::vector<Tensor>& outputs,
                                                       const Tensor& input, Timeout timeout = {});

  // Returns once every rank has called it.
  absl::Status Barrier(Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> BarrierAsync(Timeout timeout = {});

  // Sends to `dst`; receives from `src`, whose tensor must have the same type and size.
  absl::Status Send(const Tensor& tensor, int64_t dst, int64_t tag = 0, Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> SendAsync(const Tensor& tensor, int64_t dst,
                                                  int64_t tag = 0, Timeout timeout = {});
  absl::Status Recv(const Tensor& tensor, int64_t src, int64_t tag = 0, Timeout timeout = {});
  absl::StatusOr<std::shared_ptr<Work>> RecvAsync(const Tensor& tensor, int64_t src,
                                                  int64_t tag = 0, Timeout timeout = {});

  // OK, or why the group can no longer be used.
  absl::Status status() const;

  // Ends the group: waits up to `timeout` for this rank's operations in flight, then aborts them.
  // Later calls fail. Idempotent.
  void Close(absl::Duration timeout = absl::Seconds(10));

  // Ends the group at once; operations in flight, here and on the peers, fail with `reason`.
  void Abort(absl::string_view reason);

 private:
  ProcessGroup(const Options& options, std::shared_ptr<Backend> backend)
      : options_(options), backend_(std::move(backend)) {}

  // The two ways of every operation: on the calling thread if the lane is idle, or in the
  // background.
  absl::Status Run(const Operation& operation, Timeout timeout);
  absl::StatusOr<std::shared_ptr<Work>> Start(Operation operation, Timeout timeout);

  absl::Status Admit(const Operation& operation, Timeout timeout);
  absl::Status Execute(const Operation& operation, const CallContext& context);
  // The end of an operation that was admitted: breaks the group if that is what `status` means.
  absl::Status Finished(absl::Status status);
  Lane& LaneOf(const Operation& operation);
  void Break(const absl::Status& cause);

  const Options options_;
  const std::shared_ptr<Backend> backend_;
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // OK while the group is usable.
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  Lane collectives_;
  absl::Mutex lanes_mutex_;  // One lane for each kind, peer and tag of p2p, made when first used.
  std::map<std::tuple<OpKind, int64_t, int64_t>, std::unique_ptr<Lane>> p2p_
      ABSL_GUARDED_BY(lanes_mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_PROCESS_GROUP_H_
