// Messages between two ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_LETTERS_H_
#define SYNCLINE_BACKENDS_SHM_LETTERS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/shm/board.h"
#include "backends/shm/vigil.h"
#include "backends/shm/writer.h"
#include "core/base/deadline.h"
#include "core/tensor/tensor.h"

namespace syncline {

// One rank's part in all of them. A send posts a letter. Short data come in it, and those that are
// not long in a parcel with it: the send returns then, and waits only if very many letters to the
// rank have not been received. Others, and those for which there is no parcel, are streamed through
// a buffer of the sender when a receive has taken the letter: one message to each rank at a time,
// so that a receiver that stands still holds up nobody else. Thread-safe, with the restrictions of
// Backend::Send and Recv.
class Letters {
 public:
  explicit Letters(Vigil& vigil);

  absl::Status Send(const Tensor& tensor, const Call& call, const Deadline& deadline);

  // Returns the rank that sent.
  absl::StatusOr<int> Recv(const Tensor& tensor, const Call& call, const Deadline& deadline);

 private:
  // A receive that waits.
  struct Receipt {
    int source;
    int tag;
    std::atomic<Letter*> letter{nullptr};  // Once there is one for it,
    int sender = -1;                       // and who sent it.
  };
  struct Arrival {
    Letter* letter;
    uint64_t number;  // In the order in which this rank has seen the letters of all others.
  };
  // What has come from one rank.
  struct Inbox {
    std::atomic<uint32_t> end{0};  // Where the next letter will be; changes under the lock.
    std::deque<Arrival> letters;   // Those that no receive waits for, in the order of sending.
  };

  int rank() const { return vigil_.rank(); }

  // Claims a letter to `dst`, and a parcel for `bytes` if there is one. Null if all are on their
  // way.
  Letter* TryClaim(int dst, size_t bytes);
  // So many to one rank are used as long as they suffice.
  uint32_t FewLetters() const { return std::min<uint32_t>(4, board_.sizes().letters); }
  uint32_t FreeAfter(int dst, uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  bool Reclaim(Letter& letter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  uint64_t ClaimParcel(Letter& letter, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  // A stream for a message to `dst`; -1 while another message to it has one, or all are in use.
  int TryClaimStream(int dst);
  void ReleaseStream(int stream);
  absl::Status Stream(const Tensor& tensor, int dst, Letter& letter, const Waiting& waiting);
  absl::Status TakeStream(const Tensor& tensor, int src, Letter& letter, const Waiting& waiting);

  // Waits until `mine` has a letter.
  absl::Status Take(Receipt& mine, const Waiting& waiting);
  // Gives what has come from `source`, or from any rank, to the receives that wait, in the order of
  // their calls; the rest stays in the inboxes.
  void Sort(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_);
  void SortFrom(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_);
  // The letter that came first of those for `mine`, if there is one.
  bool TakeFromInboxes(Receipt& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_);
  // Whether a letter from `source`, or from any rank, has come and is not sorted. Needs no lock.
  bool HasCome(int source) const;

  Vigil& vigil_;
  const Board& board_;

  absl::Mutex claims_mutex_;
  // By receiver: the letter to be posted next, which is free.
  std::vector<uint32_t> next_ ABSL_GUARDED_BY(claims_mutex_);
  // In turn: see rings.h. The letters with which they go; null if free.
  Letter* parcels_[kParcels] ABSL_GUARDED_BY(claims_mutex_) = {};
  uint64_t next_parcel_ ABSL_GUARDED_BY(claims_mutex_) = 0;
  // By stream: the rank to which it carries a message; -1 if it is free.
  std::vector<int> streams_ ABSL_GUARDED_BY(claims_mutex_);
  Writer writer_;

  absl::Mutex receipts_mutex_;
  std::vector<Receipt*> receipts_ ABSL_GUARDED_BY(receipts_mutex_);  // In the order of their calls.
  std::vector<Inbox> inboxes_;                                       // By sender.
  uint64_t arrivals_ ABSL_GUARDED_BY(receipts_mutex_) = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_LETTERS_H_
