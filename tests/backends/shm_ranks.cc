#include "tests/backends/shm_ranks.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "syncline/deadline.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline::shm {

ShmRanks::ShmRanks(const std::vector<CmaPolicy>& policies)
    : segment_(tensor::Segment::Create(SegmentLayout::BytesFor(policies.size())).value()),
      groups_(policies.size()) {
  const int size = static_cast<int>(policies.size());
  HashStore store;
  const Deadline deadline(absl::Minutes(1));
  for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(backends::PeerTable peers,
                                   backends::PeerTable::Join(store, rank, size, "", deadline));
         backends::PeerProcesses processes(peers);
         groups_[rank] = std::make_unique<ShmGroup>(segment_.data(), std::move(peers),
                                                    std::move(processes), policies[rank]);
         return groups_[rank]->Join(deadline);
       })) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
}

}  // namespace syncline::shm
