// Tests whose program is its own worker, as ranks in processes.
#ifndef SYNCLINE_TESTS_SUPPORT_PROCESSES_H_
#define SYNCLINE_TESTS_SUPPORT_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

// This program once more, with other arguments. It dies with this process, and with the object.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // All that it prints until it ends; what there is, and a line that says so, if it has not ended
  // within `limit`.
  std::string Output(absl::Duration limit);

 private:
  pid_t pid_;
  int output_;
};

// The open files and threads of this process, once there are no more than `expected`, or after five
// seconds: a thread that has been joined is still in the table for a moment.
int64_t CountPossessions(int64_t expected = std::numeric_limits<int64_t>::max());

// The ports of IPv4 at which this process listens.
std::set<int> ListeningPorts();

// An empty folder, removed with what is in it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();

  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_PROCESSES_H_
