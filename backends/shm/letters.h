// Messages between two ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_LETTERS_H_
#define SYNCLINE_BACKENDS_SHM_LETTERS_H_

#include <cstdint>
#include <list>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/shm/vigil.h"
#include "core/deadline.h"
#include "core/tensor.h"

namespace syncline {

// One rank's part in all of them. A send posts a letter, and returns once a receive has taken it:
// short data come in the letter, others are then streamed through a buffer of the sender, one
// message at a time. Thread-safe, with the restrictions of Backend::Send and Recv.
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

  absl::StatusOr<size_t> ClaimSlot(int dst, const Waiting& waiting);
  void FreeSlot(int dst, size_t slot);
  absl::Status Stream(const Tensor& tensor, int dst, Letter& letter, const Waiting& waiting);
  absl::Status TakeStream(const Tensor& tensor, int src, const Letter& letter,
                          const Waiting& waiting);

  // Takes a letter for `mine` if there is one, and no receive before it wants it.
  bool TryTake(std::list<Receipt>::const_iterator mine, Found& found);
  bool TryTakeFrom(int source, std::list<Receipt>::const_iterator mine, Found& found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_);

  Vigil& vigil_;
  const Board& board_;

  absl::Mutex slots_mutex_;
  std::vector<std::vector<bool>> used_ ABSL_GUARDED_BY(slots_mutex_);  // Slots, by receiver.

  absl::Mutex stream_mutex_;  // Held while this rank streams.

  absl::Mutex receipts_mutex_;
  std::list<Receipt> receipts_ ABSL_GUARDED_BY(receipts_mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_LETTERS_H_
