// The TCP connections of one rank to all others, and the watch over them.
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
#include "backends/common/roster.h"
#include "backends/gloo/transport.h"
#include "core/base/deadline.h"
#include "core/group/backend.h"
#include "core/store/store.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"

namespace syncline {

// A full mesh over Gloo's TCP transport. A thread watches the connections: when a peer's breaks
// without the peer having taken its leave, operations under way end, whichever peer they wait for.
// They then Break the mesh; so the failure of one rank soon reaches every wait on every rank.
class Mesh {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string address;  // To listen on.
    MismatchCheck mismatch_check =
        MismatchCheck::kOn;  // A MismatchError if it is not the same on all.
    PeerCheck check_peers;   // While this rank waits for others to come.
  };

  // Connects to all ranks, which find each other through `store`; returns once this rank has, when
  // others may still be at it.
  static absl::StatusOr<std::unique_ptr<Mesh>> Connect(Store& store, const Options& options,
                                                       const Deadline& deadline);

  ~Mesh();  // Leaves, if that has not been done. Requires that no operation is under way.

  const Roster& roster() const { return roster_; }

  // Begins the watch. `on_change` is called on its thread whenever a peer has left or was lost.
  // Once, before any operation. BackendError if no thread can be started.
  absl::Status Watch(std::function<void()> on_change);

  // For one operation. Waits end, by an exception, at `deadline` and when the mesh is closed. The
  // mesh must outlive it.
  std::shared_ptr<gloo::Context> ForOperation(const Deadline& deadline);

  // For messages of all operations to come. `data` must stay until this rank has left. Before any
  // operation.
  StandingBuffer& MakeStandingBuffer(void* data, size_t size);

  // Waits until it is known of those of `ranks` whose processes have ended whether they had taken
  // their leave: their connections are about to close. For a moment at most.
  void AwaitEnds(absl::Span<const int> ranks);

  // Makes all operations under way, and all later ones, throw now; the peers' follow, as this
  // rank's connections are closed in the background. Idempotent.
  void Break();

  // Tells the peers that this rank is fine but takes part no more, and why, and closes the
  // connections once the peers have read all that was sent to them, or after half a second if they
  // do not read. Requires that no operation is under way.
  void Leave(absl::string_view reason);

  // The peers that have taken their leave, with their reasons; and those whose connection broke
  // without, before this rank broke the mesh itself.
  std::map<int, std::string> left() const;
  std::vector<int> lost() const;

 private:
  enum class Link { kOpen, kLeft, kLost };

  // What a rank that leaves sends to every other. Plain bytes.
  struct Goodbye {
    // Of what a peer has sent: it need not end with a zero.
    std::string Reason() const { return std::string(reason, strnlen(reason, sizeof(reason))); }

    char said;         // 0 until it has come.
    char reason[255];  // Padded with zeros.
  };

  Mesh(const Options& options, Roster roster, std::shared_ptr<gloo::transport::Context> transport);

  enum class Watching { kYes, kStop, kBreak };

  // On the watch thread. Every connection carries a receive that nothing completes; so Gloo reports
  // on it when the connection ends.
  Watching AwaitEnd(const std::function<void()>& on_change);
  void UpdateLinks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatch(Watching how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseConnections();
  void SendGoodbyes(absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const int size_;
  const Roster roster_;
  BufferSet buffers_;
  std::shared_ptr<gloo::transport::Context> transport_;  // Null once left.
  std::vector<std::unique_ptr<StandingBuffer>> standing_;
  // Rank r writes goodbyes_[r] when it leaves. Read only once its connection is closed.
  std::vector<Goodbye> goodbyes_;
  // After its goodbye, rank r sends lasts_[r], which nobody looks at.
  std::vector<char> lasts_;
  std::unique_ptr<gloo::transport::UnboundBuffer> last_;

  mutable absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  Watching watching_ ABSL_GUARDED_BY(mutex_) = Watching::kYes;
  // All ever posted: goodbyes come to the first, and the last waits on all links that are open.
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> alarms_ ABSL_GUARDED_BY(mutex_);
  std::thread watch_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_MESH_H_
