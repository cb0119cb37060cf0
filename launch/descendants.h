// Finds and signals the processes that workers started and left behind.
#ifndef SYNCLINE_LAUNCH_DESCENDANTS_H_
#define SYNCLINE_LAUNCH_DESCENDANTS_H_

#include <sys/types.h>

#include <set>
#include <vector>

#include "absl/status/status.h"

namespace syncline::launch {

// Makes this process the subreaper (prctl(2)) of its descendants: a process whose parent exits
// becomes a child of this one, so that none escapes, whatever session or group it moved to.
// Children that the process had before are ignored. Not thread-safe.
class Descendants {
 public:
  // Ignores the present children.
  Descendants();

  // Becomes the subreaper. UnsupportedError if the kernel refuses.
  absl::Status Adopt();

  // Ignores one more child, such as the guardian.
  void Exclude(pid_t pid) { strangers_.insert(pid); }

  // All living descendants, except the ignored children and their descendants. Reads /proc.
  std::vector<pid_t> Find() const;

  void SignalAll(int signal) const;

 private:
  std::set<pid_t> strangers_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_DESCENDANTS_H_
