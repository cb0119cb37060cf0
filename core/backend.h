// What moves the bytes of one group: the interface below ProcessGroup.
#ifndef SYNCLINE_CORE_BACKEND_H_
#define SYNCLINE_CORE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/deadline.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/reduce_op.h"
#include "core/registry.h"
#include "core/store.h"
#include "core/tensor.h"

namespace syncline {

enum class OpKind { kBroadcast, kAllReduce, kAllGather, kBarrier, kSend, kRecv };

// "broadcast", "all_reduce", ...
absl::string_view Name(OpKind kind);

// What a backend serves, as data. ProcessGroup refuses the rest with UnsupportedError.
struct Capabilities {
  std::set<OpKind> ops;
  std::set<DType> move_dtypes;    // broadcast, all_gather, send, recv
  std::set<DType> reduce_dtypes;  // all_reduce, where CheckReduction allows the operation
  std::set<DeviceType> devices = {DeviceType::kCpu};
};

// What every call of a backend carries.
struct CallContext {
  uint64_t sequence = 0;  // Number of the operation in its group (p2p: between the two ranks).
  Deadline deadline{absl::InfiniteDuration()};
  int tag = 0;  // p2p only.
};

// One rank's end of one group. All calls block until this rank's part is done, and fail with a
// status that names the ranks at fault as far as the backend can know them: kTimeout once the
// deadline has passed, kNetwork or kBackend when a peer is lost, kMismatch when ranks disagree.
//
// Threads: ProcessGroup makes at most one collective call at a time, in the same order on every
// rank; Send to one peer and tag, and Recv from one peer and tag, are each made one at a time, but
// run beside each other and beside a collective. Abort may be called at any time from any thread.
//
// Arguments are valid when they arrive (ProcessGroup checks: capabilities, ranks in range,
// contiguous, equal sizes), so implementations check nothing twice. Tensors may have no elements.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;
  virtual const Capabilities& capabilities() const = 0;

  // Copies `root`'s tensor over every other rank's.
  virtual absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) = 0;

  // Replaces `tensor` on every rank by the elementwise reduction over all ranks; bitwise equal on
  // all ranks.
  virtual absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) = 0;

  // Copies rank r's `input` to outputs[r] on every rank. `input` may be outputs[rank] itself.
  virtual absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                 const CallContext& context) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier(const CallContext& context) = 0;

  // Sends to rank `dst`, or receives from rank `src`, in order for each (pair, tag). Send may
  // return before the peer has received.
  virtual absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) = 0;
  virtual absl::Status Recv(const Tensor& tensor, int src, const CallContext& context) = 0;

  // Makes calls in progress, here and (where the transport can) on the peers, and all later ones
  // fail soon with `cause`. Never blocks for long. Idempotent.
  virtual void Abort(const absl::Status& cause) = 0;
};

// How one rank of a group is made. Collective: factories return once all ranks have connected.
struct BackendConfig {
  std::shared_ptr<Store> store;  // Private to the group.
  int rank = 0;
  int size = 1;
  std::string local_address;  // Where peers reach this host; backends listen there and only there.
  Deadline deadline{absl::Minutes(30)};  // For connecting.
};

// Backends by name: "local", "gloo".
using BackendRegistry = Registry<Backend, const BackendConfig&>;

}  // namespace syncline

#endif  // SYNCLINE_CORE_BACKEND_H_
