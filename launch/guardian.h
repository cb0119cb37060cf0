// Ends the workers' process groups, and removes the secret, when the launcher is killed.
#ifndef SYNCLINE_LAUNCH_GUARDIAN_H_
#define SYNCLINE_LAUNCH_GUARDIAN_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// A child process that holds the reading end of a pipe of the launcher. The kernel kills a worker
// whose launcher has died, but not what the worker started, such as data loaders. When the pipe is
// closed, which happens however the launcher dies, the guardian kills these process groups and
// removes the job's folder. Owns the process and the pipe. For the main thread.
class Guardian {
 public:
  // Must be called before the process starts other threads, because it forks. BackendError without
  // a pipe or a process.
  static absl::StatusOr<Guardian> Start();

  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = default;
  // Makes the guardian kill the groups that were not removed, and waits some seconds for its end.
  ~Guardian();

  // Until Remove, the process group is killed if this process dies. Remove must be called before
  // the kernel can reuse the group's id.
  void Add(pid_t group);
  void Remove(pid_t group);

  // Makes the guardian remove the folder too. Only the last folder counts.
  void Own(const std::string& folder);

  pid_t pid() const { return pid_; }

 private:
  Guardian(pid_t pid, base::UniqueFd pipe);

  pid_t pid_;
  base::UniqueFd pipe_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_GUARDIAN_H_
