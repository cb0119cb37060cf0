// The communicators of a group, and what its ranks know of each other: who has left, failed or
// died.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_CONNECTIONS_H_
#define SYNCLINE_BACKENDS_MPI_MPI_CONNECTIONS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/connections.h"
#include "backends/common/disconnect_watch.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/mpi/leftovers.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/mpi_runtime.h"
#include "syncline/backend.h"

namespace syncline::mpi {

// One rank's connections. MPI itself says nothing of a rank that has left or died: a rank that
// leaves or fails sends every other a control message, on a communicator of their own, and dead
// processes of this host are found by their pidfds, those of others by the store. Waits look for
// both: see Check.
//
// Thread-safe. Owns the communicators. They are freed once all ranks have left, as what a rank has
// still to receive would otherwise reach a later communicator of the same number; and never after a
// failure.
class MpiConnections final : public backends::Connections {
 public:
  // Collective: returns once the communicators are made. Errors are those of PeerTable::Join; what
  // MpiRuntime::Get returns where there is no MPI; an ArgumentError if the ranks are not all
  // processes of one MPI job; a TimeoutError at the deadline.
  static absl::StatusOr<std::unique_ptr<MpiConnections>> Connect(const BackendConfig& config);

  ~MpiConnections() override;  // Leaves, if that has not been done.

  MpiRuntime& runtime() { return runtime_; }
  const MpiApi& api() const { return api_; }
  // For collectives, and for the elements of long messages; and for messages and headers.
  MpiHandle collectives() const { return state_->collectives; }
  MpiHandle messages() const { return state_->messages; }
  int tag_upper_bound() const { return tag_upper_bound_; }
  // Tells the messages of this group from those of any other.
  uint64_t nonce() const { return state_->nonce; }

  // For a wait that has lasted for `waited`, whose requests need `peers`: why it cannot succeed, a
  // NetworkError, or OK. A receive from any rank needs one of all, and passes `any`. Makes MPI move
  // what it has to move.
  absl::Status Check(absl::Span<const int> peers, bool any, absl::Duration waited);

  // Takes what is left of a failed operation: requests that MPI may still work on, which keep
  // `memory`. The group has failed then.
  void Abandon(std::vector<MpiHandle> requests, std::vector<std::shared_ptr<void>> memory);

  // Leaves, and uses MPI no more: call it when MPI is about to be finalised. No operation may be
  // under way.
  void Close(absl::string_view reason);

  // Those of Connections. Connections do not end, so AwaitDisconnects looks once more for control
  // messages.
  const backends::PeerTable& peers() const override { return peers_; }
  void AwaitDisconnects(absl::Span<const int> ranks) override;
  void Disconnect() override;
  void Leave(absl::string_view reason) override;
  std::map<int, std::string> left() const override;
  std::vector<int> lost() const override;

 private:
  // What a rank that leaves or fails sends to every other rank. Plain bytes.
  struct ControlMessage {
    uint64_t nonce;
    uint64_t has_failed;  // 1, or 0 for a rank that leaves in order.
    char reason[240];     // Padded with zeros; not ended with one if it is full.
  };
  enum class Link { kOpen, kLeft, kLost };

  // All that MPI may still use after this object has gone.
  struct State {
    MpiHandle collectives = 0, messages = 0, control = 0;
    uint64_t nonce = 0;
    MpiHandle control_receive = 0;
    ControlMessage received = {};
    ControlMessage sent = {};
    std::vector<MpiHandle> control_sends;
    std::vector<int> open;  // The ranks that have not left, once this one has.
  };
  // Of a rank that has left: frees the communicators once all others have too. Whether it has.
  static bool FreeIfAllHaveLeft(const MpiApi& api, State& state, Sweep sweep);

  MpiConnections(MpiRuntime& runtime, backends::PeerTable peers, std::shared_ptr<State> state,
                 int tag_upper_bound, std::shared_ptr<Store> store, int hosting_rank);

  // Takes the control messages that have come.
  void ReceiveControl() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckProcesses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckOtherHosts() ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkDead(const absl::Status& death) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendControl(bool has_failed, absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MpiRuntime& runtime_;
  const MpiApi& api_;
  const backends::PeerTable peers_;
  const backends::PeerProcesses processes_;
  backends::DisconnectWatch other_hosts_;
  const std::shared_ptr<State> state_;
  const int tag_upper_bound_;
  std::atomic<bool> is_disconnected_{false};

  mutable absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::string> reasons_ ABSL_GUARDED_BY(mutex_);  // Of the ranks that have left.
  std::map<int, absl::Time> left_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> lost_ ABSL_GUARDED_BY(mutex_);
  absl::Status death_ ABSL_GUARDED_BY(mutex_);  // Names the dead, if there are any.
  absl::Time next_check_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_CONNECTIONS_H_
