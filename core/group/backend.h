// What moves the bytes of one group: the interface below ProcessGroup.
#ifndef SYNCLINE_CORE_GROUP_BACKEND_H_
#define SYNCLINE_CORE_GROUP_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/enum_set.h"
#include "core/base/liveness.h"
#include "core/store/store.h"
#include "core/tensor/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

enum class OpKind {
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};

// All kinds, in the order of their values.
absl::Span<const OpKind> AllOpKinds();

// "broadcast", "all_reduce", ...
absl::string_view Name(OpKind kind);

// Whether elements are combined, so that the element type must allow the ReduceOp.
bool Reduces(OpKind kind);

// Whether two ranks take part, not the whole group.
bool IsP2p(OpKind kind);

// As the source of a receive: whichever rank sends first.
inline constexpr int kAnySource = -1;

// What a backend serves, as data. ProcessGroup refuses the rest with UnsupportedError.
struct Capabilities {
  EnumSet<OpKind> ops;
  EnumSet<DType> move_dtypes;    // Of operations that only move elements.
  EnumSet<DType> reduce_dtypes;  // Of those that reduce, where CheckReduction allows it.
  EnumSet<DeviceType> devices = {DeviceType::kCpu};

  // Every operation, on the CPU, of every type.
  static Capabilities All();
};

// What the user called, where a backend's call is only how it is done: for messages, and for ranks
// to compare. Borrowed for the call. Without MismatchCheck::kOn there is only the name.
struct CallForm {
  absl::string_view name = {};     // "broadcast_coalesced"; empty: the name of the kind.
  absl::string_view tensors = {};  // "float32[2], int32[4]"; empty: those of the backend's call.
  uint64_t hash = 0;               // Of name, types and sizes. Calls with different ones mismatch.
};

// What every call of a backend carries.
struct CallContext {
  uint64_t sequence = 0;  // Number of the operation in its group (p2p: between the two ranks).
  Deadline deadline{absl::InfiniteDuration()};
  int tag = 0;  // p2p only.
  CallForm form = {};
};

// One rank's end of one group. All calls block until this rank's part is done, and fail with a
// status that names the ranks at fault as far as the backend can know them: kTimeout once the
// deadline has passed, kNetwork or kBackend when a peer is lost, kMismatch when ranks disagree.
//
// Threads: ProcessGroup makes at most one collective call at a time, in the same order on every
// rank; Send to one peer and tag, and Recv from one source and tag, are each made one at a time,
// but run beside each other and beside a collective. Abort may be called at any time from any
// thread.
//
// An error may be about another operation than the one that returns it: what broke the group is
// returned by all later ones. It then begins with the name that ProcessGroup gave it, "recv #5", or
// quotes ranks that "called all_reduce #5"; ProcessGroup adds who speaks, and its operation where
// the error is not about that.
//
// Arguments are valid when they arrive (ProcessGroup checks: capabilities, ranks in range,
// contiguous, sizes as said below, nothing overlaps but where it is said), so implementations
// check nothing of one rank twice. Tensors may have no elements. Reductions take the ranks'
// elements in a fixed order, and the result has the same bytes on every rank that gets it; avg and
// premul_sum sum, avg then divides by the number of ranks, and the factors of premul_sum are
// ProcessGroup's business.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;

  // Copies `root`'s tensor over every other rank's.
  virtual absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) = 0;

  // Replaces `tensor` on every rank by the elementwise reduction over all ranks.
  virtual absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) = 0;

  // The same on `root` only; the other ranks' tensors keep their elements.
  virtual absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                              const CallContext& context) = 0;

  // Copies rank r's `input` to outputs[r] on every rank. outputs[r] has the size of rank r's input,
  // which may differ from rank to rank. `input` may be outputs[rank] itself.
  virtual absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                 const CallContext& context) = 0;

  // The same on `root` only; `outputs` is empty elsewhere. All inputs have one size.
  virtual absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                              const CallContext& context) = 0;

  // Copies inputs[r] of `root` to rank r's `output`; `inputs` is empty elsewhere. All have one
  // size. On root, `output` may be inputs[root] itself.
  virtual absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                               const CallContext& context) = 0;

  // Reduces inputs[r] of all ranks to rank r's `output`. The sizes of inputs[r] may differ with r,
  // not with the rank that passes them. Inputs keep their elements; `output` may be inputs[rank].
  virtual absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                     ReduceOp op, const CallContext& context) = 0;

  // Copies inputs[r] to outputs[rank] of rank r. inputs[r] and what rank r has for it in its
  // outputs have one size, each pair its own.
  virtual absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                                const CallContext& context) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier(const CallContext& context) = 0;

  // Sends to rank `dst`, or receives from rank `src` or kAnySource, in order for each (pair, tag).
  // Send may return before the peer has received. Recv returns the rank that sent. A message goes
  // to the receive that was called first, of those from its sender and those from any source.
  virtual absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) = 0;
  virtual absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) = 0;

  // Makes calls in progress, here and (where the transport can) on the peers, and all later ones
  // fail soon with `cause`. Never blocks for long. Idempotent.
  virtual void Abort(const absl::Status& cause) = 0;
};

// Whether ranks compare their calls before they move data, where that costs something.
enum class MismatchCheck { kOn, kOff };

// How one rank of a group is made. Collective: factories return once all ranks have connected.
struct BackendConfig {
  std::shared_ptr<Store> store;  // Private to the group.
  int rank = 0;
  int size = 1;
  std::string local_address;  // Where peers reach this host; backends listen there and only there.
  Deadline deadline{absl::Minutes(30)};  // For connecting.
  MismatchCheck mismatch_check = MismatchCheck::kOn;
  PeerCheck check_peers;  // For a wait for other ranks while connecting; may be empty.
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_GROUP_BACKEND_H_
