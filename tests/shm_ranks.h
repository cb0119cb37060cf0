// Ranks of a group as objects of one process: for tests of the parts of the backend.
#ifndef SYNCLINE_TESTS_SHM_RANKS_H_
#define SYNCLINE_TESTS_SHM_RANKS_H_

#include <memory>
#include <vector>

#include "backends/shm/board.h"
#include "backends/shm/vigil.h"
#include "core/tensor/segment.h"

namespace syncline {

// All have joined. Ends the test program if they cannot.
class ShmRanks {
 public:
  explicit ShmRanks(int size);

  Vigil& vigil(int rank) { return *vigils_[rank]; }
  const Board& board() const { return vigils_[0]->board(); }

 private:
  Segment segment_;
  std::vector<std::unique_ptr<Vigil>> vigils_;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SHM_RANKS_H_
