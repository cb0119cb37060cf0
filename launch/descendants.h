// The processes that workers started and left behind.
#ifndef SYNCLINE_LAUNCH_DESCENDANTS_H_
#define SYNCLINE_LAUNCH_DESCENDANTS_H_

#include <sys/types.h>

#include <set>
#include <vector>

#include "absl/status/status.h"

namespace syncline::launch {

// Makes this process inherit the orphans among its descendants, so that nothing that was started
// can slip away, whatever session or group it moved to. Children that the process had before are
// nobody's business here.
class Descendants {
 public:
  // Counts the present children as strangers.
  Descendants();

  // Asks the kernel for the orphans.
  absl::Status Adopt();

  // A child that is not to be found, such as the guardian.
  void Exclude(pid_t pid) { strangers_.insert(pid); }

  // All living processes below this one, except the strangers and what is below them.
  std::vector<pid_t> Find() const;

  void SignalAll(int signal) const;

 private:
  std::set<pid_t> strangers_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_DESCENDANTS_H_
