// The TCP connections of one rank to all others, and the watch over them: here it is decided
// whether a peer has left or was lost.
#ifndef SYNCLINE_BACKENDS_GLOO_MESH_H_
#define SYNCLINE_BACKENDS_GLOO_MESH_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "backends/common/connections.h"
#include "backends/common/peer_table.h"
#include "backends/gloo/transport.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::gloo_backend {

// A full mesh over Gloo's TCP transport, and a thread that watches the connections. When a peer's
// connection breaks without a leave message, all operations under way end, whichever peer they wait
// for. The operation that fails calls Disconnect, so its peers' operations end too. In this way the
// failure of one rank soon reaches every wait on every rank.
//
// Thread-safe except where a method says otherwise. Owns the connections, the watch's thread and
// the persistent buffers.
class Mesh final : public backends::Connections {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string address;  // Where this rank listens.
    MismatchCheck mismatch_check = MismatchCheck::kOn;
    PeerCheck check_peers;  // For the wait for other ranks; may be empty.
  };

  // Collective: connects to all ranks, which find each other through `store`. Returns once this
  // rank has connected, when others may not have yet. Errors are those of PeerTable::Join; a
  // NetworkError or TimeoutError that names the peer that cannot be reached; and a MismatchError if
  // mismatch_check is not the same on all ranks.
  static absl::StatusOr<std::unique_ptr<Mesh>> Connect(const std::shared_ptr<Store>& store,
                                                       const Options& options,
                                                       const Deadline& deadline);

  ~Mesh() override;  // Leaves, if that has not been done. Requires that no operation is under way.

  const backends::PeerTable& peers() const override { return peers_; }

  // Starts the watch. Its thread calls `on_change` whenever a peer has left or was lost. Call it
  // once, before any operation. BackendError if no thread can be started.
  absl::Status Watch(std::function<void()> on_change);

  // A context for one operation. Its waits end by an exception at `deadline` and when the group
  // fails. The mesh must outlive it.
  std::shared_ptr<gloo::Context> ForOperation(const Deadline& deadline);

  // A buffer for messages of all operations to come. It belongs to the mesh, and `data` must stay
  // until this rank has left. Not thread-safe: call it before any operation.
  PersistentBuffer& MakePersistentBuffer(void* data, size_t size);

  // Those of Connections. AwaitDisconnects waits for kDisconnectGrace at most. Disconnect makes
  // waits throw, here at once and on the peers when the watch has closed this rank's connections in
  // the background. Leave closes them once the peers have read all that was sent to them, or after
  // kLeaveTimeout.
  void AwaitDisconnects(absl::Span<const int> ranks) override;
  void Disconnect() override;
  void Leave(absl::string_view reason) override;
  std::map<int, std::string> left() const override;
  std::vector<int> lost() const override;

 private:
  enum class Link { kOpen, kLeft, kLost };

  // What a rank that leaves sends to every other rank. Plain bytes.
  struct LeaveMessage {
    // A peer has sent `reason`, so it need not end with a zero.
    std::string Reason() const { return std::string(reason, strnlen(reason, sizeof(reason))); }

    char has_come;     // Not 0: the message has come.
    char reason[255];  // Padded with zeros.
  };

  // kRunning until EndWatch; then whether the watch's thread closes the connections.
  enum class WatchState { kRunning, kStopped, kDisconnected };

  Mesh(const Options& options, backends::PeerTable peers,
       std::shared_ptr<gloo::transport::Context> transport);

  // On the watch's thread, until EndWatch. Every connection carries a receive that no message
  // completes; so Gloo ends the receive when the connection ends.
  WatchState RunWatch(const std::function<void()>& on_change);
  void UpdateLinks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatch(WatchState how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseConnections();
  void SendLeaveMessages(absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const int size_;
  const backends::PeerTable peers_;
  BufferSet buffers_;
  std::shared_ptr<gloo::transport::Context> transport_;  // Null once left.
  std::vector<std::unique_ptr<PersistentBuffer>> persistent_;
  // leave_messages_[r] is written by Gloo when that of rank r comes; read only once the connection
  // to rank r has ended.
  std::vector<LeaveMessage> leave_messages_;
  // After its leave message, rank r sends one byte, which lands in drain_bytes_[r] and which nobody
  // reads: see SendLeaveMessages.
  std::vector<char> drain_bytes_;
  std::unique_ptr<gloo::transport::UnboundBuffer> drain_receive_;

  mutable absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  WatchState watch_state_ ABSL_GUARDED_BY(mutex_) = WatchState::kRunning;
  // All that were ever posted. Leave messages come to the first; the watch waits for the last,
  // which is posted on all open links.
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> watch_receives_
      ABSL_GUARDED_BY(mutex_);
  std::thread watch_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_MESH_H_
