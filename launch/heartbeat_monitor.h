// Finds workers that have stopped making progress.
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
// counts as its first. A worker without one for the limit is to get SIGABRT, so that it can show
// where it is (Python's faulthandler prints the stacks), and SIGKILL kAbortGrace later.
//
// Ages are those of the monotonic clock, so that setting the wall clock kills nobody: files are
// looked at four times per limit, and a heartbeat is at most as old as the look before. Not
// thread-safe.
class HeartbeatMonitor {
 public:
  static constexpr absl::Duration kAbortGrace = absl::Seconds(2);

  // `limit` may be InfiniteDuration: then nothing is ever overdue. `clock` must outlive the watch.
  HeartbeatMonitor(absl::Duration limit, const Clock& clock);

  bool enabled() const { return limit_ < absl::InfiniteDuration(); }

  // Makes `file`, empty, and watches it for the worker that starts now.
  absl::Status Watch(int local_rank, const std::string& file);
  // The worker has ended, or has been told to.
  void Forget(int local_rank);

  struct Overdue {
    int local_rank = 0;
    int signal = 0;      // To be sent to it now: SIGABRT, later SIGKILL.
    std::string reason;  // "has made no progress for 61 s (limit --health-timeout=60)".
  };
  // Looks at the files. Each worker comes once for each signal.
  std::vector<Overdue> Check();
  // When Check() is to be called next; InfiniteFuture if nobody is watched.
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
