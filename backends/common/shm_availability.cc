#include "backends/common/shm_availability.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::Duration kShmJoinTimeout = absl::Seconds(30);

}  // namespace

Deadline ShmJoinDeadline(const Deadline& joining) {
  return Deadline(std::min(joining.Remaining(), kShmJoinTimeout));
}

absl::StatusOr<bool> ShmIsAvailable(const BackendConfig& config, const absl::Status& own,
                                    std::function<absl::Status()> check_peers) {
  // A failure travels as the payload of a second table, not as its error: it is no error of the
  // group, which goes on without shared memory. But a rank that is interrupted will not.
  absl::StatusOr<std::string> payload = std::string(own.ok() ? "" : own.message());
  if (IsInterrupted(own)) payload = own;
  PrefixStore store("shm availability", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(const PeerTable results,
                            PeerTable::Join(store, config.rank, config.size, payload,
                                            config.deadline, std::move(check_peers)));
  for (int rank = 0; rank < config.size; ++rank) {
    if (results.payload(rank).empty()) continue;
    // Only the lowest rank that failed logs.
    if (rank == config.rank) {
      Log(LogLevel::kWarning,
          absl::StrCat("backend auto: a group of ", config.size,
                       " ranks does without shared memory", ", and will be slower, since ",
                       results.Describe(rank), " failed: ", own.message()));
    }
    return false;
  }
  return true;
}

}  // namespace syncline::backends
