// Signals to the launcher, as a descriptor to read from.
#ifndef SYNCLINE_LAUNCH_SIGNALS_H_
#define SYNCLINE_LAUNCH_SIGNALS_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD and what else is asked for. SIGHUP
// stays ignored if it was (nohup). The others are reset to their defaults, so that workers do not
// inherit their being ignored, as a shell's background job would. SIGPIPE and SIGXFSZ are ignored.
class SignalQueue {
 public:
  // Blocks the signals for this thread and those that it starts later: to be called first.
  static absl::StatusOr<SignalQueue> Open(const std::vector<int>& more);

  int fd() const { return fd_.get(); }  // Readable when there are signals.
  std::vector<int> Take();              // Does not wait.

 private:
  explicit SignalQueue(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

// Has the kernel end this process with `exit_code` if it has not ended in time, whatever it hangs
// in. A later call takes the place of an earlier one.
void ExitWithin(absl::Duration time, int exit_code);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_SIGNALS_H_
