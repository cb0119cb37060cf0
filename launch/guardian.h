// Ends the workers' process groups, and removes the secret, when the launcher is killed.
#ifndef SYNCLINE_LAUNCH_GUARDIAN_H_
#define SYNCLINE_LAUNCH_GUARDIAN_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// A process that holds the other end of a pipe of the launcher. The kernel kills a worker whose
// launcher is gone, but not what the worker started (data loaders, say); the guardian kills these
// groups, and removes the job's folder, when its pipe is closed, which no way of dying prevents.
class Guardian {
 public:
  // To be called before the process has other threads.
  static absl::StatusOr<Guardian> Start();

  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = default;
  // Kills the groups that have not been removed, and waits some seconds for the guardian to end.
  ~Guardian();

  // From now on, until Remove, the group is killed if this process dies. A group is to be removed
  // before its id can mean another one.
  void Add(pid_t group);
  void Remove(pid_t group);

  // The folder, if it still exists then, is removed too. For one folder.
  void Own(const std::string& folder);

  pid_t pid() const { return pid_; }

 private:
  Guardian(pid_t pid, UniqueFd pipe);

  pid_t pid_;
  UniqueFd pipe_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_GUARDIAN_H_
