// Ranks with a group each, as threads of one process.
#ifndef SYNCLINE_TESTS_GROUPS_GROUP_RANKS_H_
#define SYNCLINE_TESTS_GROUPS_GROUP_RANKS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "syncline/process_group.h"

namespace syncline {

inline constexpr absl::Duration kGroupTimeout = absl::Seconds(60);

// Runs `body` on every rank, a thread with one end of a group each, and returns the outcomes. All
// ends live until all bodies have returned.
std::vector<absl::Status> RunGroup(const std::string& backend, int size,
                                   const std::function<absl::Status(ProcessGroup& group)>& body);

inline int RankOf(const ProcessGroup& group) { return static_cast<int>(group.rank()); }

// An error that says what is wrong on which rank, unless `right`.
absl::Status Expect(bool right, absl::string_view what, const ProcessGroup& group);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_GROUPS_GROUP_RANKS_H_
