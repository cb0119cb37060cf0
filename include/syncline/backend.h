// The interface below ProcessGroup: what moves the bytes of one group.
#ifndef SYNCLINE_BACKEND_H_
#define SYNCLINE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "syncline/collective.h"
#include "syncline/completion.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/enum_set.h"
#include "syncline/op_kind.h"
#include "syncline/peer.h"
#include "syncline/store.h"
#include "syncline/stream.h"

namespace syncline {

// What a backend serves, as data. ProcessGroup refuses the rest with UnsupportedError.
struct Capabilities {
  EnumSet<OpKind> ops;
  EnumSet<DType> move_dtypes;    // Of operations that only move elements.
  EnumSet<DType> reduce_dtypes;  // Of those that reduce, where CheckReduction allows it.
  EnumSet<DeviceType> devices = {DeviceType::kCpu};
  // Devices whose tensors ProcessGroup copies to memory of the host for the backend, and back.
  EnumSet<DeviceType> staged_devices;

  // Whether calls on tensors of a device are work of the device's streams: Run returns once it is
  // enqueued behind CallContext::caller, with a Completion whose handle is_stream_ordered.
  bool is_stream_ordered = false;

  // Every operation, on the CPU, of every type; reductions of all types but those of eight bits.
  static Capabilities All();
  // The same, and tensors of CUDA devices through memory of the host.
  static Capabilities AllThroughHost();
};

// What the backend of a group has made for one that is split off it: of nccl, a communicator.
class ChildCommunicator {
 public:
  virtual ~ChildCommunicator() = default;
};

// Which rank of which new group one of the parent's becomes, as ncclCommSplit and MPI_Comm_split
// have it: those of one color make a group, in the order of their keys.
struct SplitPlace {
  static constexpr int kNoColor = -1;  // Of none.
  int color = kNoColor;
  int key = 0;
};

// Whether ranks compare their calls before they move data, where that costs something.
enum class MismatchCheck { kOn, kOff };

// What every call of a backend carries beside its arguments.
struct CallContext {
  // Number of the operation in its group (p2p: between the two ranks, in one direction, where
  // numbers may be left out).
  uint64_t sequence = 0;
  // When the call ends with a TimeoutError if it has not ended before.
  Deadline deadline = Deadline::FromFirstWait(absl::InfiniteDuration());  // Reads no clock.
  // Goes into the call's fingerprint. Calls with different salts mismatch, so that a backend that
  // is built on another one can have it compare more than the arguments.
  uint64_t salt = 0;
  MismatchCheck mismatch_check = MismatchCheck::kOn;
  // Where the tensors of a call on a device are ready; null for tensors of the CPU. Valid during
  // the call alone.
  const CallerStream* caller = nullptr;
  // The record of the call. BlockingBackend sees to it for the function of a backend.
  const Collective* collective = nullptr;
  // Of a step of another call, by a backend that is built on this one: the record of that call,
  // whose number `sequence` is, and which messages quote as far as its fingerprint shows it. What
  // the step itself is, the ranks need not compare.
  const Collective* step_of = nullptr;
  // Whether all ranks wait for each other in the call, though some need nobody's data. The same on
  // all of them.
  bool meets = false;

  // What messages quote.
  const Collective& quoted() const { return step_of != nullptr ? *step_of : *collective; }
};

// One rank's end of one group, which moves its bytes. ProcessGroup holds it; each rank has its own.
//
// A program's own backend implements Run: it multiplies by `factor` where the reduction is
// premul_sum, and carries out several collectives so that none of them waits for a later one.
// Within this repository most derive from TypedBackend (backends/common), which has a function for
// each operation, or from BlockingBackend (core/group), which has one for all; both see to the two.
//
// Threads: ProcessGroup issues at most one collective at a time, in the same order on every rank;
// sends to one peer and tag, and receives from one source and tag, are each issued one at a time,
// but beside each other and beside a collective. Abort may be called at any time from any thread.
//
// Errors are statuses that name the ranks at fault as far as the backend can know them: kTimeout
// once the deadline has passed, kNetwork or kBackend when a peer is lost, kMismatch when ranks
// disagree. They carry the same as data, in an ErrorOrigin: the ranks, and the operation if the
// message names it. An error may be about another operation than the one that returns it: what
// broke the group is returned by all later ones. ProcessGroup adds to the message who speaks, and
// its operation unless that is among those of the origin.
//
// The contract between ranks: no rank returns OK with the data of another call. A rank that only
// gives (the root of a broadcast, a rank of a gather that is not the root) may hear of a mismatch
// at a later call, at most 128 calls on or at the next that synchronises all ranks; over several
// hosts, some of which have several ranks, at most 256; between two ranks of one host at most 32.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;

  // Carries out one call, or several as a group: these are issued together, so that sends and
  // receives among them cannot block each other, and are done when all are. Returns an error if
  // nothing is under way any more; else a Completion, which is done at once where the call blocks.
  //
  // Arguments are valid when they arrive (CheckArguments has accepted them), so implementations
  // check nothing of one rank twice. `collectives` and `context` are valid during this call alone;
  // tensors, which may have no elements, until the completion is done. Reductions take the ranks'
  // elements in a fixed order, and the result has the same bytes on every rank that gets the same
  // one; avg sums and then divides by the number of ranks.
  virtual absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                         const CallContext& context) = 0;

  // Run of one call, and its outcome: the rank that sent, for a receive, else 0. Waits until
  // `context.deadline` at most; the call then goes on, and its tensors are held until it has ended.
  // A backend whose calls block overrides it, since a Completion costs as much as some of them.
  virtual absl::StatusOr<int> RunAndWait(const Collective& collective, const CallContext& context);

  // Whether a call may still use its tensors when RunAndWait has returned, as one that failed may,
  // or the backend may keep them. Then views that a caller makes for the call keep their memory.
  virtual bool MayKeepTensors() const { return true; }

  // Whether groups that are split off this one begin with a communicator of Split. It stays the
  // same, also after an error, and is the same on all ranks.
  virtual bool CanSplit() const { return false; }

  // The communicator of the group of `place`; null for a rank of none. All ranks call it, in one
  // order with their collectives, and it waits until all have. Errors are those of Run.
  virtual absl::StatusOr<std::shared_ptr<ChildCommunicator>> Split(const SplitPlace& place,
                                                                   const CallContext& context);

  // Abort by a rank whose own calls have ended, and which leaves the others to theirs: what it has
  // given them still arrives. It may wait for that, until `deadline` and for some seconds at most.
  virtual void Leave(const absl::Status& cause, const Deadline& /*deadline*/) { Abort(cause); }

  // Makes calls in progress, here and (where the transport can) on the peers, and all later ones
  // fail soon with `cause`; completes what is pending. Never blocks for long. Idempotent: the first
  // cause stays.
  virtual void Abort(const absl::Status& cause) = 0;
};

// Waits until the call of `collective` has ended, and returns its outcome. If the wait ends first,
// at `deadline` or because this thread is interrupted, the call goes on, and its tensors are kept
// until it has ended.
absl::StatusOr<int> WaitFor(const Completion& completion, const Collective& collective,
                            const Deadline& deadline);

inline absl::StatusOr<int> RunAndWait(Backend& backend, const Collective& collective,
                                      const CallContext& context) {
  return backend.RunAndWait(collective, context);
}

// How one rank of a group is made. Collective: factories return once all ranks have connected.
struct BackendConfig {
  std::shared_ptr<Store> store;  // Private to the group.
  int rank = 0;
  int size = 1;
  std::string local_address;  // Where peers reach this host; backends listen there and only there.
  std::vector<std::string> more_addresses;  // Of its other interfaces, to share the load; or none.
  Deadline deadline{absl::Minutes(30)};     // For connecting.
  MismatchCheck mismatch_check = MismatchCheck::kOn;
  PeerCheck check_peers;  // For a wait for other ranks while connecting; may be empty.
  // The device whose tensors this rank will pass: a backend of its devices then connects for it
  // while the group is made, not at the first call. All ranks give one, or none does.
  std::optional<Device> device = {};
  // What Split of the parent's backend has made for this group. Null where there is none.
  std::shared_ptr<ChildCommunicator> communicator = nullptr;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKEND_H_
