// Starts and signals one worker process.
#ifndef SYNCLINE_LAUNCH_WORKER_H_
#define SYNCLINE_LAUNCH_WORKER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

struct WorkerSpec {
  std::string program;                   // A path.
  std::vector<std::string> arguments;    // Beginning with the program's name.
  std::vector<std::string> environment;  // "NAME=value".
  enum class Input { kNone, kInherited } input = Input::kNone;
  // Inherited output is this process's own: a terminal, if it has one. Nothing comes by the pipes.
  enum class Output { kPiped, kInherited } output = Output::kPiped;
  std::vector<int> cpus;  // The CPUs that it may use; empty: those of this process.
};

// A process that leads its own session and process group, so that no terminal reaches it, and that
// its children can be signalled with it. The kernel kills it when the thread that called Start
// ends. Owns the reading ends of its output pipes, but not the process: the destructor does not end
// it.
//
// The owner reaps it (waitpid on pid()) and must then call SetReaped(): until then the kernel does
// not reuse the pid, and Signal is safe. Not thread-safe.
class Worker {
 public:
  // Returns once the program runs, or with the error of fork or exec. Must be called from the main
  // thread, which is suspended meanwhile (vfork(2)); other threads are not.
  static absl::StatusOr<Worker> Start(const WorkerSpec& spec);

  Worker(Worker&&) = default;
  Worker& operator=(Worker&&) = default;

  pid_t pid() const { return pid_; }
  // The reading ends of its output, non-blocking.
  int out() const { return out_.get(); }
  int err() const { return err_.get(); }

  // No effect once it is reaped.
  void Signal(int signal) const;
  void SignalGroup(int signal) const;

  bool reaped() const { return reaped_; }
  void SetReaped() { reaped_ = true; }

 private:
  Worker(pid_t pid, base::UniqueFd out, base::UniqueFd err);

  pid_t pid_;
  base::UniqueFd out_;
  base::UniqueFd err_;
  bool reaped_ = false;
};

// The executable file that `name` means: the name itself if it contains a slash, or else the first
// one in `path` ("dir:dir"). ArgumentError names the folders if there is none. Thread-safe.
absl::StatusOr<std::string> FindProgram(absl::string_view name, absl::string_view path);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_WORKER_H_
