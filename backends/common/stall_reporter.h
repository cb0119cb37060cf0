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
// `missing` groups the missing ranks by what they do instead. If there are none, all ranks have
// come, or `come`, if these alone are known to have.
std::string StallText(const PeerTable& peers, absl::string_view operation, absl::Duration waited,
                      const std::map<std::string, std::vector<int>>& missing,
                      const std::vector<int>& come = {});

// Warns of long waits, for transports on which a rank does not see what the others do. A rank that
// waits for long publishes its operation in the group's store, under the key "stall/RANK", and for
// whom it waits there if it does not need all. Each rank that waits compares these entries and
// reports which ranks wait elsewhere or not at all. A rank may wait for another in its operation
// that waits itself: those at the ends of these chains are missing. Only the lowest of the ranks
// that wait in one operation for the same ranks also logs a warning.
//
// Thread-safe. It shares the store, and keeps its own copy of the table. Methods return at once and
// report no errors: a thread asks the store, which may hang.
class StallReporter {
 public:
  struct Wait {
    std::string name;          // "all_reduce #3": the same on all ranks.
    std::string operation;     // The same with the arguments, for messages.
    std::vector<int> awaited;  // The other ranks that the operation needs.
    // If not, it waits for `awaited` at the moment; and what these have come to is not known.
    bool awaits_all = true;
    bool is_collective = true;
    std::string last_seen;  // The last operation in which this rank met the others; may be empty.
  };

  StallReporter(std::shared_ptr<Store> store, PeerTable peers);

  // Publishes that this rank waits, or that it no longer does.
  void PublishWait(const Wait& wait) const;
  void ClearWait() const;

  // Reports which ranks are missing, as wait `notice` of the StallFile.
  void Report(Wait wait, absl::Duration waited, int64_t notice) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const PeerTable> peers_;
};

// What a rank has published: the name of its operation; and in a second line the ranks for which it
// waits, as "2 5", unless it awaits all.
struct PublishedWait {
  std::string name;          // Any text, as another process has written it.
  std::vector<int> awaited;  // Of the group.
};
using PublishedWaits = std::map<int, PublishedWait>;  // By rank.

// Of the ranks of a group of `size` that have published one. What is not understood is left out.
absl::StatusOr<PublishedWaits> ReadWaits(Store& store, int size);

// Who keeps a wait waiting, by what ReadWaits has returned.
struct StallFindings {
  base::Stall stall;
  // This rank is the lowest of those that wait in this operation, and know as much.
  bool is_lowest = true;
};
StallFindings FindMissing(const PeerTable& peers, const StallReporter::Wait& wait,
                          absl::Duration waited, const PublishedWaits& waits);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_STALL_REPORTER_H_
