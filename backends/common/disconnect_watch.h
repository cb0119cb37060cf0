// Detects that the process of a peer on another host has ended, through the store.
#ifndef SYNCLINE_BACKENDS_COMMON_DISCONNECT_WATCH_H_
#define SYNCLINE_BACKENDS_COMMON_DISCONNECT_WATCH_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "syncline/store.h"

namespace syncline::backends {

// For a transport that does not say that a process of another host has ended, as MPI. Each rank has
// the store remember it by its connection (Store::SetOnDisconnect), which the kernel closes when
// the process ends, however it ends. A host that loses its power or its network closes none.
//
// Watches nothing where all ranks are on one host (see peer_processes.h), or where the store does
// not watch its connections. Thread-safe. Shares the store.
class DisconnectWatch {
 public:
  // `hosting_rank`'s process hosts the store, or -1 for none of the group: its death ends the
  // store.
  DisconnectWatch(std::shared_ptr<Store> store, const PeerTable& peers, int hosting_rank);

  // A NetworkError that names the ranks of other hosts whose connections have ended, among those
  // for which `matters` is true. Asks the store every kInterval at most, and otherwise says what it
  // said last; blocks for about a second where the store is silent.
  absl::Status Check(absl::FunctionRef<bool(int rank)> matters);

  static constexpr absl::Duration kInterval = absl::Milliseconds(500);

 private:
  // The ranks that the store says have gone. What it says is final.
  std::vector<int> Ask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Store> store_;
  const PeerTable peers_;
  const int hosting_rank_;

  absl::Mutex mutex_;
  bool is_watching_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<int> gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_DISCONNECT_WATCH_H_
