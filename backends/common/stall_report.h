// Who keeps an operation waiting, in words: see core/base/stall.h.
#ifndef SYNCLINE_BACKENDS_COMMON_STALL_REPORT_H_
#define SYNCLINE_BACKENDS_COMMON_STALL_REPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/roster.h"
#include "core/store/store.h"

namespace syncline {

// One line: "rank 0 (host a, pid 5) has waited for 10s in all_reduce #3 (...); missing: rank 2
// (host b, pid 81): it is in no operation of this group; ranks 4-9: ...". `missing` has the ranks
// by what they do instead.
std::string StallText(const Roster& roster, absl::string_view operation, absl::Duration waited,
                      const std::map<std::string, std::vector<int>>& missing);

// For transports on which a rank does not see what the others do: ranks that wait for long say so
// under a key of the group's store, and each of those that wait in one operation reports which of
// the others do not, the lowest also in the log. Returns at once: a thread asks the store.
// Thread-safe.
class StallReporter {
 public:
  struct Wait {
    std::string name;          // "all_reduce #3": the same on all ranks.
    std::string operation;     // With its arguments, for people.
    std::vector<int> awaited;  // The other ranks that it needs.
    bool is_collective = true;
    std::string last_seen;  // What the ranks that are missing were last seen in; may be empty.
  };

  StallReporter(std::shared_ptr<Store> store, Roster roster);

  // This rank waits in `name`, or no longer does.
  void Tell(const std::string& name) const;
  void Forget() const;
  // Reports who is missing, for wait `notice` of the StallFile.
  void Report(Wait wait, absl::Duration waited, int64_t notice) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const Roster> roster_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_STALL_REPORT_H_
