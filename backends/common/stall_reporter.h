// Reports which ranks keep an operation waiting: the text behind the timers of core/base/stall.h.
#ifndef SYNCLINE_BACKENDS_COMMON_STALL_REPORTER_H_
#define SYNCLINE_BACKENDS_COMMON_STALL_REPORTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "core/base/stall_file.h"
#include "syncline/store.h"

namespace syncline::backends {

// The text of a warning, one line: "rank 0 (host a, pid 5) has waited for 10s in all_reduce #3
// (...); missing: rank 2 (host b, pid 81): it is in no operation of this group; ranks 4-9: ...".
// `missing` groups the missing ranks by what they do instead.
std::string StallText(const PeerTable& peers, absl::string_view operation, absl::Duration waited,
                      const std::map<std::string, std::vector<int>>& missing);

// Warns of long waits, for transports on which a rank does not see what the others do. A rank that
// waits for long publishes its operation in the group's store, under the key "stall/RANK". Each
// rank that waits compares these entries and reports which ranks wait elsewhere or not at all; only
// the lowest of the ranks that wait in one operation also logs a warning.
//
// Thread-safe. It shares the store, and keeps its own copy of the table. Methods return at once and
// report no errors: a thread asks the store, which may hang.
class StallReporter {
 public:
  struct Wait {
    std::string name;          // "all_reduce #3": the same on all ranks.
    std::string operation;     // The same with the arguments, for messages.
    std::vector<int> awaited;  // The other ranks that the operation needs.
    bool is_collective = true;
    std::string last_seen;  // The last operation in which this rank met the others; may be empty.
  };

  StallReporter(std::shared_ptr<Store> store, PeerTable peers);

  // Publishes that this rank waits in `name`, or that it no longer waits.
  void PublishWait(const std::string& name) const;
  void ClearWait() const;

  // Reports which ranks are missing, as wait `notice` of the StallFile.
  void Report(Wait wait, absl::Duration waited, int64_t notice) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const PeerTable> peers_;
};

// The operations in which ranks wait, by rank, of those that have published one: what others have
// written, so any text, and any rank.
absl::StatusOr<std::map<int, std::string>> ReadWaits(Store& store);

// Who keeps a wait waiting, by what ReadWaits has returned.
struct StallFindings {
  base::Stall stall;
  bool is_lowest = true;  // This rank is the lowest of those that wait in this operation.
};
StallFindings FindMissing(const PeerTable& peers, const StallReporter::Wait& wait,
                          absl::Duration waited, const std::map<int, std::string>& waits);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_STALL_REPORTER_H_
