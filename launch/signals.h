// Receives the launcher's signals through a descriptor (signalfd(2)).
#ifndef SYNCLINE_LAUNCH_SIGNALS_H_
#define SYNCLINE_LAUNCH_SIGNALS_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// Receives SIGCHLD, SIGUSR1, SIGUSR2, and those that stop the job or are passed on to workers.
// These get their default action back, so that workers do not inherit that a shell ignores them for
// background jobs; only SIGHUP stays ignored if it was (nohup), and then does not stop the job.
// SIGPIPE and SIGXFSZ are ignored. All other signals act on this process as on any. Owns the
// descriptor; for the main thread.
class SignalQueue {
 public:
  // Blocks the signals for this thread and for those that it starts later, so it must be called
  // before any thread starts. BackendError without a descriptor.
  static absl::StatusOr<SignalQueue> Open(const std::vector<int>& stop_signals,
                                          const std::vector<int>& forwarded_signals);

  int fd() const { return fd_.get(); }  // Readable when there are signals.
  std::vector<int> Take();              // Does not wait.

 private:
  explicit SignalQueue(base::UniqueFd fd) : fd_(std::move(fd)) {}

  base::UniqueFd fd_;
};

// Ends this process with `exit_code` after `time`, by a timer, whatever it hangs in. A later call
// replaces an earlier one.
void ExitWithin(absl::Duration time, int exit_code);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_SIGNALS_H_
