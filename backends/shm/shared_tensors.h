// How ranks come to read each other's tensors, those of core/tensor/shared_memory.h, where they
// are.
#ifndef SYNCLINE_BACKENDS_SHM_SHARED_TENSORS_H_
#define SYNCLINE_BACKENDS_SHM_SHARED_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/shm/board.h"
#include "backends/shm/meeting.h"
#include "backends/shm/vigil.h"
#include "core/tensor/segment.h"

namespace syncline {

inline constexpr int kEveryRank = -1;

// Who has what other ranks read.
struct Sources {
  int from = kEveryRank;  // One rank, or all,
  int but = -1;           // without this one.

  bool Has(int rank) const { return (from == kEveryRank || from == rank) && rank != but; }
};

// One rank's part. In the meeting of a collective, each rank offers what it has; when the meeting
// is open, all ranks come to the same conclusion. A rank's memory is mapped by all others, to be
// read only, when it is first offered by all who must; and unmapped at the first meeting of this
// kind after it was freed, or with the group. Not thread-safe.
//
// Peers open a memory by way of /proc, where the kernel lets a process see the open files of
// others of its user, and make sure that it is the one that was meant. If one cannot, the group
// goes without from then on.
class SharedTensors {
 public:
  explicit SharedTensors(Vigil& vigil);

  // Before the meeting is opened, in which ranks lay nothing: what this rank has, if it can be
  // mapped. Null: nothing.
  void MakeOffer(const void* data, size_t bytes, Meeting& meeting);

  // After it: whether all ranks can read what all `sources` have offered. On all ranks or none.
  // Each must call it.
  absl::StatusOr<bool> Agree(const Sources& sources, const Meeting& meeting);

  // What a source has offered, if it has been agreed upon.
  const char* DataOf(int rank) const { return data_[rank]; }

 private:
  void FindFreed();
  void Forget(int rank, const Introduction& introduction);
  absl::StatusOr<bool> MapNew(const Sources& sources, const Waiting& waiting);
  absl::Status Map(int rank, const Offer& offer, const Introduction& introduction);
  Introduction& IntroductionOf(int rank, uint64_t number) const {
    return board_.area(rank).introductions[number % 2];
  }

  int rank() const { return vigil_.rank(); }

  Vigil& vigil_;
  const Board& board_;
  bool is_usable_ = true;

  Offer own_ = {};
  const char* own_data_ = nullptr;
  std::set<uint64_t> introduced_;  // Memories of this rank that the others have mapped;
  std::vector<uint64_t> freed_;    // those that they should unmap.
  uint64_t freed_before_ = 0;      // SharedMemoriesFreed() of the last look.

  std::vector<Offer> offers_;                        // By rank; of the last meeting.
  std::vector<const char*> data_;                    // Likewise.
  std::vector<std::map<uint64_t, Segment>> mapped_;  // By rank, then by number.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_SHARED_TENSORS_H_
