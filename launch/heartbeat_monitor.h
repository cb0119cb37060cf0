// Finds workers that have stopped sending heartbeats: --health-timeout.
#ifndef SYNCLINE_LAUNCH_HEARTBEAT_MONITOR_H_
#define SYNCLINE_LAUNCH_HEARTBEAT_MONITOR_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launch/clock.h"

namespace syncline::launch {

// Watches the workers' heartbeat files. A heartbeat is a new modification time; a worker's start
// counts as its first. A worker without one for the limit gets SIGABRT, so that it can show where
// it hangs (Python's faulthandler prints the stacks), and SIGKILL kAbortGrace later. The caller
// sends the signals.
//
// Ages are measured with the monotonic clock, so that setting the wall clock kills no worker: files
// are checked four times per limit, and a new heartbeat is at most as old as the check before. Not
// thread-safe.
class HeartbeatMonitor {
 public:
  static constexpr absl::Duration kAbortGrace = absl::Seconds(2);

  // `limit` may be InfiniteDuration: then nothing is ever overdue. `clock` must outlive the watch.
  HeartbeatMonitor(absl::Duration limit, const Clock& clock);

  bool enabled() const { return limit_ < absl::InfiniteDuration(); }

  // Creates `file`, empty, and watches it for the worker that starts now. BackendError if the file
  // cannot be created.
  absl::Status Watch(int local_rank, const std::string& file);
  // Call it when the worker has ended or has been asked to stop.
  void Forget(int local_rank);

  struct Overdue {
    int local_rank = 0;
    int signal = 0;      // What to send now: SIGABRT, later SIGKILL.
    std::string reason;  // "has made no progress for 61 s (limit --health-timeout=60)".
  };
  // Checks all files. Returns each overdue worker once for each signal.
  std::vector<Overdue> Check();
  // When to call Check() next; InfiniteFuture if no worker is watched.
  absl::Time deadline() const;

  // Since the last heartbeat that Check() saw; nothing if the worker is not watched.
  std::optional<absl::Duration> Age(int local_rank) const;

 private:
  struct WorkerState {
    std::string file;
    absl::Time written;                           // The file's time.
    absl::Time last_heartbeat;                    // When that was, by clock_.
    bool has_heartbeat = false;                   // Since its start.
    absl::Time kill_at = absl::InfiniteFuture();  // Once it has got SIGABRT.
    bool killed = false;
  };

  void ReadHeartbeat(WorkerState* worker) const;
  std::string Describe(const WorkerState& worker) const;

  const absl::Duration limit_;
  const Clock& clock_;
  absl::Time last_check_;               // The last time.
  std::map<int, WorkerState> workers_;  // By local rank.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_HEARTBEAT_MONITOR_H_
