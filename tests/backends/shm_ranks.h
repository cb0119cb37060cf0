// Ranks of a group as objects of one process: for tests of the parts of the backend.
#ifndef SYNCLINE_TESTS_BACKENDS_SHM_RANKS_H_
#define SYNCLINE_TESTS_BACKENDS_SHM_RANKS_H_

#include <memory>
#include <vector>

#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "core/tensor/segment.h"

namespace syncline::shm {

// A segment, and the ranks of a group that have joined it. Ends the test program if they cannot.
class ShmRanks {
 public:
  explicit ShmRanks(int size) : ShmRanks(std::vector<CmaPolicy>(size, CmaPolicy::kOn)) {}
  // By rank.
  explicit ShmRanks(const std::vector<CmaPolicy>& policies);

  ShmGroup& group(int rank) { return *groups_[rank]; }
  const SegmentLayout& layout() const { return groups_[0]->layout(); }

 private:
  tensor::Segment segment_;
  std::vector<std::unique_ptr<ShmGroup>> groups_;  // By rank.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_TESTS_BACKENDS_SHM_RANKS_H_
