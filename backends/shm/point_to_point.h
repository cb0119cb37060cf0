// Send and recv between ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_POINT_TO_POINT_H_
#define SYNCLINE_BACKENDS_SHM_POINT_TO_POINT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/twin_receive.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_backend.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "core/base/thread_bias.h"
#include "syncline/backend.h"
#include "syncline/tensor.h"

namespace syncline::shm {

// One rank's part in all messages. A send posts a message slot to the receiver. What happens to the
// data depends on their size:
//   inline       up to kInlineMaxBytes: they travel in the slot.
//   eager        up to sizes().eager_payload, which is kEagerMessageMaxBytes in groups of up to 4
//                ranks and less in larger ones: the sender copies them to one of its eager payload
//                buffers, and returns; it waits only if very many messages to the rank have not
//                been received. Where each rank has a core, it posts the slot of a longer one
//                after the first piece, so that the receiver takes that meanwhile.
//   rendezvous   longer ones, and those for which no payload buffer is free: once a receive has
//                matched the slot, the sender pipelines the data through a buffer of its own. One
//                message to each rank is transferred at a time, so that a receiver that stands
//                still holds up nobody else. Where that pays (CmaMayPay of thresholds.h) the
//                receiver reads the sender's tensor by CMA instead.
//
// Receives match messages by sender and tag, in the order of sending (see MPI 4.0, section 3.5): a
// message that comes before its receive waits in the unexpected-message queue of its sender, and a
// receive that comes before its message is a posted receive.
//
// A message is sent on behalf of a call of the group, or of the larger group of which this one is a
// node (NodeOptions): `call` has that one's ranks, and a message of error too.
//
// Thread-safe, with the restrictions on sends and receives of Backend. Borrows the group.
class PointToPoint {
 public:
  // `node` is empty if the group is no node of a larger one.
  PointToPoint(ShmGroup& group, NodeOptions node);

  // Both fail with the errors of Waiter::Await.
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& call);

  // Returns the rank that sent. A MismatchError, which fails the group, if the message does not fit
  // the tensor.
  absl::StatusOr<int> Recv(const Tensor& tensor, int source, const CallContext& call);

  // Those of NodeBackend.
  std::unique_ptr<backends::TwinReceive> NewReceive(int tag);
  absl::StatusOr<int> Complete(backends::TwinReceive& receive, const Tensor& tensor,
                               const CallContext& call);

 private:
  class OpenReceive;

  // A message of which the slot has been handed back before its receive.
  struct BufferedMessage {
    size_t bytes() const { return sizeof(*this) + data.size(); }

    MessageSlot slot;  // A copy.
    std::vector<char> data;
  };
  // A receive that waits for its message. On the stack of Recv, or in an OpenReceive.
  struct PostedReceive {
    int source;
    int tag;
    backends::TwinReceive* twin = nullptr;  // Which must be claimed before a match.
    // Set once, by the thread that matches it. `sender` is written before.
    std::atomic<MessageSlot*> slot{nullptr};
    int sender = -1;
    std::unique_ptr<BufferedMessage> buffered = nullptr;  // If `slot` is in there.

    bool Claim() const { return twin == nullptr || twin->Claim(); }
  };
  struct UnexpectedMessage {
    MessageSlot* slot;
    uint64_t arrival;  // Counts the messages of all senders, in the order in which they were seen.
    std::unique_ptr<BufferedMessage> buffered;  // If `slot` is in there.
  };
  // What has come from one rank.
  struct SourceQueue {
    // Index of the slot in which the next message will come. Changes under match_mutex_; a thread
    // that reads an old value without it takes the lock in vain, or looks again later.
    std::atomic<uint32_t> next_slot{0};
    std::deque<UnexpectedMessage> unexpected;  // In the order of sending.
    // The slots of those of them that are not buffered, and how many these are.
    std::vector<bool> keeps;
    size_t slots_kept = 0;
  };

  int rank() const { return group_.rank(); }
  // The rank as errors name it.
  int NameOf(int rank) const { return group_.peers().NumberOf(rank); }

  // A message to `rank` has been posted, or one of this rank's receives has been matched.
  void NotifyOfMessage(int rank) const {
    RankRegion& region = layout_.region(rank);
    if (!group_.waiter().Notify(region.message_event)) return;
    // Stored before the sleeper counted itself in what Notify has loaded with acquire.
    const bool sleeps_elsewhere = region.sleeps_elsewhere.load(std::memory_order_relaxed) != 0;
    if (sleeps_elsewhere && node_.ring != nullptr) node_.ring(rank);
  }

  // Claims a slot for a message to `dst`, and an eager payload buffer for `bytes` if one is free.
  // Null if all slots are in use. In a node messages of users leave one for the steps of
  // collectives, which a receiver takes before messages that it has not asked for yet.
  MessageSlot* TryClaimSlot(int dst, size_t bytes, bool leaves_one);
  uint32_t PreferredSlots() const {
    return std::min<uint32_t>(kPreferredMessageSlots, layout_.sizes().message_slots);
  }
  // The one of `count` slots after `slot`, in turn.
  static uint32_t SlotAfter(uint32_t slot, uint32_t count) {
    return slot + 1 < count ? slot + 1 : 0;
  }
  uint32_t FreeAfter(int dst, uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  bool Reclaim(MessageSlot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  uint64_t ClaimEagerPayload(MessageSlot& slot, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_);
  // What an eager send of `bytes` copies before it posts the slot.
  size_t FirstPiece(size_t bytes) const {
    const bool has_pieces = bytes > 2 * kEagerPieceBytes && !group_.waiter().is_oversubscribed();
    return has_pieces ? kEagerPieceBytes : bytes;
  }
  // Copies an eager message from the sender's payload buffer as it comes. Errors: those of
  // Waiter::Await.
  absl::Status TakePayload(const Tensor& tensor, int src, const MessageSlot& slot,
                           const WaitContext& context);
  // A buffer for a rendezvous with `dst`; -1 while another one with it lasts, or all are in use.
  int TryClaimRendezvousBuffer(int dst);
  void ReleaseRendezvousBuffer(int buffer);
  // The size of the chunks in which a rendezvous moves `bytes`; it divides that of its buffer.
  size_t RendezvousChunk(size_t bytes) const;
  absl::Status SendRendezvous(const Tensor& tensor, int dst, MessageSlot& slot,
                              const WaitContext& context);
  absl::Status RecvRendezvous(const Tensor& tensor, int src, MessageSlot& slot,
                              const WaitContext& context);
  // Reads a message whose slot is posted from the sender's tensor, and hands the slot back. False
  // if that cannot be read: then nothing has changed but the contents of `tensor`.
  absl::StatusOr<bool> TryReadByAddress(const Tensor& tensor, int src, MessageSlot& slot,
                                        const WaitContext& context);

  // Waits until `mine` has a message. AwaitMatchSlowly does when TryTakeNext has found none.
  absl::Status AwaitMatch(PostedReceive& mine, const WaitContext& context) {
    {
      base::BiasedMutexLock lock(&match_mutex_);
      if (TryTakeNext(mine)) return absl::OkStatus();
    }
    return AwaitMatchSlowly(mine, context);
  }
  absl::Status AwaitMatchSlowly(PostedReceive& mine, const WaitContext& context);
  // Posts `mine`, unless there is a message for it. Returns whether there is one.
  bool PostUnlessMatched(PostedReceive& mine);
  // Looks whether `mine`, which is posted, has a message.
  bool HasMatch(PostedReceive& mine);
  void Withdraw(PostedReceive& mine);
  // Takes the message with which `mine` has been matched.
  absl::StatusOr<int> TakeMatched(PostedReceive& mine, const Tensor& tensor,
                                  const CallContext& call);
  // Matches what has come from `source`, or from any rank for kAnySource, with the posted receives
  // in the order of their calls. The rest joins the unexpected-message queues.
  void Match(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_);
  void MatchFrom(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_);
  // Copies a message that has just joined the queue of its sender, and hands its slot back. Returns
  // false if it is long, or too much has been copied already.
  bool Buffer(int source, UnexpectedMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_);
  // Gives `mine` the unexpected message that came first of those that match, if there is one.
  bool MatchUnexpected(PostedReceive& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_);
  // Gives `mine` the next message of its sender, if that is there and nothing else is to be thought
  // of: no other receive of this rank waits, and there is no earlier message.
  bool TryTakeNext(PostedReceive& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_);
  // Whether a message from `source`, or from any rank for kAnySource, has not been matched yet.
  bool HasIncoming(int source) const {
    return source == kAnySource ? HasAnyIncoming() : HasIncomingFrom(source);
  }
  bool HasAnyIncoming() const;
  bool HasIncomingFrom(int source) const {
    // Pairs with the release store of kPosted in Send.
    return NextFrom(source).state.load(std::memory_order_acquire) == MessageSlot::kPosted;
  }
  // The slot in which the next message of `source` will come. Without the lock it may be an earlier
  // one, which is harmless in HasIncomingFrom, as whoever asks looks again under the lock.
  MessageSlot& NextFrom(int source) const {
    const uint32_t index = sources_[source].next_slot.load(std::memory_order_relaxed);
    return layout_.message_slot(source, rank(), index);
  }
  // The slot of a message from `source` for which HasIncomingFrom is true; goes on to the next.
  MessageSlot& TakeIncoming(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(match_mutex_) {
    MessageSlot& slot = NextFrom(source);
    // The index comes from another process, which may be broken: it is kept within the slots.
    const uint32_t next = slot.next;  // Read once.
    const bool is_slot = next < layout_.sizes().message_slots;
    sources_[source].next_slot.store(is_slot ? next : 0, std::memory_order_relaxed);
    return slot;
  }

  // Of a slot of messages from `source`.
  size_t IndexOf(const MessageSlot& slot, int source) const {
    return &slot - &layout_.message_slot(source, rank(), 0);
  }

  ShmGroup& group_;
  const NodeOptions node_;
  const SegmentLayout& layout_;

  // Guards what this rank sends with.
  base::BiasedMutex claims_mutex_;
  // By receiver: index of the slot of the next message, which is free.
  std::vector<uint32_t> next_slots_ ABSL_GUARDED_BY(claims_mutex_);
  // By eager payload buffer, which are used in turn (see buffer_rings.h): the slot of the message
  // whose data it holds; null if it is free.
  MessageSlot* payload_slots_[kEagerPayloads] ABSL_GUARDED_BY(claims_mutex_) = {};
  uint64_t next_payload_ ABSL_GUARDED_BY(claims_mutex_) = 0;
  // By rendezvous buffer: the rank to which it carries a message; -1 if it is free.
  std::vector<int> rendezvous_peers_ ABSL_GUARDED_BY(claims_mutex_);
  AdaptiveCopier copier_;

  // Guards what this rank receives with, except the atomics.
  base::BiasedMutex match_mutex_;
  // In the order of their calls.
  std::vector<PostedReceive*> posted_receives_ ABSL_GUARDED_BY(match_mutex_);
  std::vector<SourceQueue> sources_;  // By sender.
  uint64_t arrivals_ ABSL_GUARDED_BY(match_mutex_) = 0;
  size_t buffered_bytes_ ABSL_GUARDED_BY(match_mutex_) = 0;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_POINT_TO_POINT_H_
