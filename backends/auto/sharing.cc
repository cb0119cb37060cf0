#include "backends/auto/sharing.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

Deadline SharingDeadline(const Deadline& joining) {
  return Deadline(std::min(joining.Remaining(), kPatience));
}

absl::StatusOr<bool> AllShare(const BackendConfig& config, const Roster& known,
                              const absl::Status& own) {
  PrefixStore store("sharing", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      const Roster roster,
      Roster::Join(store, config.rank, config.size, std::string(own.ok() ? "" : own.message()),
                   config.deadline, [&known] { return known.CheckAlive(); }));
  for (int rank = 0; rank < config.size; ++rank) {
    if (roster.payload(rank).empty()) continue;
    if (rank == config.rank) {
      Log(LogLevel::kWarning,
          absl::StrCat("backend auto: a group of ", config.size,
                       " ranks does without shared memory", ", and will be slower, since ",
                       roster.Describe(rank), " failed: ", own.message()));
    }
    return false;
  }
  return true;
}

}  // namespace syncline
