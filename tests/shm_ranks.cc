#include "tests/shm_ranks.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "backends/shm/peer_watchdog.h"
#include "core/base/deadline.h"
#include "core/base/status.h"
#include "store/hash_store.h"
#include "tests/ranks.h"

namespace syncline {

ShmRanks::ShmRanks(int size)
    : segment_(Segment::Create(Board::BytesFor(size)).value()), vigils_(size) {
  HashStore store;
  const Deadline deadline(absl::Minutes(1));
  for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(PeerTable roster,
                                   PeerTable::Join(store, rank, size, "", deadline));
         PeerWatchdog watchdog(roster);
         vigils_[rank] =
             std::make_unique<Vigil>(segment_.data(), std::move(roster), std::move(watchdog));
         return vigils_[rank]->Join(deadline);
       })) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
}

}  // namespace syncline
