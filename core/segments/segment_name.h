// Names of shared segments in /dev/shm, and of the processes that manage them.
#ifndef SYNCLINE_CORE_SEGMENTS_SEGMENT_NAME_H_
#define SYNCLINE_CORE_SEGMENTS_SEGMENT_NAME_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "syncline/peer.h"

namespace syncline::segments {

// The folder of POSIX shared memory.
inline constexpr char kFolder[] = "/dev/shm";

// The name of the manager that is process `manager`: "syncline-", the first 8 digits of the
// kernel's boot id, the pid namespace, the pid and the start time. No two managers that files in
// /dev/shm may be of, now or after a reboot, have the same name.
std::string ManagerName(const Peer& manager);

// A segment's name: that of its manager, and the segment's own part.
struct SegmentName {
  std::string manager;
  int pid = 0;          // Of the process that has made it, for messages.
  uint64_t client = 0;  // That process, as its manager numbers it.
  uint64_t number = 0;  // Of the segment, as its maker counts.

  std::string ToString() const;  // Without the folder.
  static std::optional<SegmentName> Parse(absl::string_view name);
};

// Removes the segments of managers of this user that have ended, or ran before the host was
// started; `self` is the calling process. Those of other pid namespaces stay: nothing tells
// whether their managers live. Returns how many were removed.
int SweepStale(const Peer& self, const std::string& folder = kFolder);

// Removes the segments of one manager. Returns how many were removed.
int SweepManager(absl::string_view manager, const std::string& folder = kFolder);

}  // namespace syncline::segments

#endif  // SYNCLINE_CORE_SEGMENTS_SEGMENT_NAME_H_
