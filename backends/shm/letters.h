// Messages between two ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_LETTERS_H_
#define SYNCLINE_BACKENDS_SHM_LETTERS_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/shm/board.h"
#include "backends/shm/vigil.h"
#include "backends/shm/writer.h"
#include "core/deadline.h"
#include "core/tensor.h"

namespace syncline {

// One rank's part in all of them. A send posts a letter, and returns once a receive has taken it:
// short data come in the letter and those that are not long in a parcel with it; others, and those
// for which there is no parcel, are then streamed through a buffer of the sender, one message at a
// time. Thread-safe, with the restrictions of Backend::Send and Recv.
class Letters {
 public:
  explicit Letters(Vigil& vigil);

  absl::Status Send(const Tensor& tensor, const Call& call, const Deadline& deadline);

  // Returns the rank that sent.
  absl::StatusOr<int> Recv(const Tensor& tensor, const Call& call, const Deadline& deadline);

 private:
  // A receive that waits, among others in the order of their calls.
  struct Receipt {
    int source;
    int tag;
  };
  struct Found {
    int source = -1;
    Letter* letter = nullptr;
  };

  int rank() const { return vigil_.rank(); }

  // A letter to `dst`, and a parcel for `bytes` if there is one.
  struct Claim {
    size_t slot;
    uint64_t parcel;
  };
  absl::StatusOr<Claim> ClaimLetter(int dst, size_t bytes, const Waiting& waiting);
  void Free(int dst, const Claim& claim);
  uint64_t ClaimParcel(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  absl::Status Stream(const Tensor& tensor, int dst, Letter& letter, const Waiting& waiting);
  absl::Status TakeStream(const Tensor& tensor, int src, const Letter& letter,
                          const Waiting& waiting);

  // Takes a letter for `mine` if there is one, and no receive before it wants it.
  bool TryTake(const Receipt& mine, Found& found);
  bool TryTakeFrom(int source, const Receipt& mine, Found& found);
  bool IsFirst(int source, const Receipt& mine) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_);

  Vigil& vigil_;
  const Board& board_;

  absl::Mutex claims_mutex_;
  std::vector<std::vector<bool>> used_ ABSL_GUARDED_BY(claims_mutex_);  // Slots, by receiver.
  std::bitset<kParcels> parcels_ ABSL_GUARDED_BY(claims_mutex_);        // Those in use.
  uint64_t next_parcel_ ABSL_GUARDED_BY(claims_mutex_) = 0;             // In turn: see rings.h.
  Writer writer_;

  absl::Mutex stream_mutex_;  // Held while this rank streams.

  absl::Mutex receipts_mutex_;
  std::vector<const Receipt*> receipts_ ABSL_GUARDED_BY(receipts_mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_LETTERS_H_
