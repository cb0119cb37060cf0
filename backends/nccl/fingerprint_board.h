// What the ranks of a group tell each other beside NCCL: their calls, who has left, the failure.
#ifndef SYNCLINE_BACKENDS_NCCL_FINGERPRINT_BOARD_H_
#define SYNCLINE_BACKENDS_NCCL_FINGERPRINT_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/common/call_fingerprint.h"
#include "backends/common/peer_table.h"
#include "core/base/event_count.h"
#include "syncline/backend.h"
#include "syncline/device.h"

namespace syncline::nccl {

// The messages from one rank to another: its number tells both apart from those back.
struct Channel {
  int src = 0;
  int dst = 0;
};

// One rank's view of memory in which each rank has an area that it alone writes. On one host the
// memory is shared; between hosts each has a copy, which a FingerprintStore keeps up to date.
// docs/internals/nccl_protocol.md draws it.
//
// Collectives have numbers of their own here, from 1, in the order in which a rank publishes them;
// so have the messages of each channel. A rank publishes a call before it enqueues it, and reuses
// the place of one only once all that must compare it have: HasRoom. Messages for which there is no
// place wait in this rank's memory, so that a rank that sends many before it receives any does not
// wait: the comparisons that free places publish them, in order.
//
// Thread-safe, except that collectives are published one at a time, and so are the messages of each
// channel. Borrows the memory, which must outlive it, and keeps its own copy of the peers.
class FingerprintBoard {
 public:
  // How many calls a rank may be ahead of the slowest.
  static constexpr uint64_t kCalls = 128;
  // How many messages of a channel have a place, and how many more may wait for one.
  static constexpr uint64_t kMessages = 64;
  static constexpr uint64_t kWaitingMessages = 8192;
  static size_t BytesFor(int size);

  // `compares` is whether the ranks compare their calls: all or none do.
  FingerprintBoard(char* memory, backends::PeerTable peers, MismatchCheck check);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const backends::PeerTable& peers() const { return peers_; }
  bool compares() const { return check_ == MismatchCheck::kOn; }

  // Whether a call may be published now.
  bool HasRoom() const;
  bool HasRoom(const Channel& channel) const;

  // The device of a call, and its number among those that the rank has used. Ranks' devices differ,
  // but the numbers of one call must not.
  struct DeviceUse {
    Device device;  // The CPU for a call without tensors.
    int number = 0;
  };

  // Publishes the call of `context`, a message perhaps later; returns its number. Requires HasRoom.
  uint64_t Publish(const CallContext& context, const DeviceUse& use);
  uint64_t Publish(const Channel& channel, const CallContext& context);

  // How many calls `rank` has published. Of a channel: its sender or its receiver.
  uint64_t Published(int rank) const;
  uint64_t Published(const Channel& channel, int rank) const;

  // How many collectives of `rank` have ended well.
  uint64_t Finished(int rank) const;

  // Whether all ranks have published that collective; both ends that message.
  bool HaveAllPublished(uint64_t number) const;
  bool HaveBothPublished(const Channel& channel, uint64_t number) const;

  // Whether the calls up to this one, of all ranks, go together: nothing if that is not known yet,
  // and the MismatchError, which quotes two calls, if they do not.
  std::optional<absl::Status> Compare(uint64_t number);
  std::optional<absl::Status> Compare(const Channel& channel, uint64_t number);

  // This rank's collectives up to this number, or so many messages more, have ended well. `call` is
  // the one that has, for what others say of this rank.
  void Finish(uint64_t number, const backends::CallDescription& call);
  void FinishMessages(uint64_t count, const backends::CallDescription& call);

  // "it is in all_reduce #5", "it is in no operation of this group, its last was barrier #4".
  std::string LastActivity(int rank) const;

  // This rank takes part in nothing any more. Later calls change nothing.
  void Leave(absl::string_view reason);
  // The reason; nothing if the rank has not left.
  std::optional<std::string> LeaveReason(int rank) const;

  // Fails the group, unless it has failed. Wakes all ranks. `reporter` has found the cause; -1: it
  // is not known who has.
  void Fail(const absl::Status& cause) { FailFor(rank_, cause); }
  void FailFor(int reporter, const absl::Status& cause);
  bool has_failed() const;
  // The first cause and the rank that has reported it, this one if that is not known. Requires
  // has_failed().
  absl::Status failure() const;
  int reporter() const;

  // Asks the other end of a channel to make its communicator, though no call of it may need one
  // yet: the one who asks must not wait for that, and does not wait at all after `limit`. Wakes it.
  void Request(const Channel& channel, absl::Duration limit);
  // Whether the other end of this channel of this rank has asked, and its limit.
  std::optional<absl::Duration> Requested(const Channel& channel) const;

  // Sleeps until another rank wakes this one, or Wake is called, or for `limit`. `epoch` is what
  // Epoch() returned before the caller looked at what it waits for.
  uint32_t Epoch() const;
  void Sleep(uint32_t epoch, absl::Duration limit);
  void Wake();

  // For the copy of another host's memory: the parts of this rank's area that have changed since
  // the last call, and what another rank's call of it returned.
  std::string TakeChanges();
  absl::Status ApplyChanges(int rank, absl::string_view changes);

 private:
  struct RankArea;
  struct FailureRecord;
  struct CallSlot;
  struct MessageRing;

  // What this rank's last TakeChanges has seen.
  struct Taken {
    uint64_t published = 0;
    bool has_left = false;
    std::vector<int64_t> state;  // Of the counters of the area.
    struct Ring {
      uint64_t published = 0, compared = 0;
      uint32_t requested = 0;
    };
    std::vector<Ring> rings;  // As OwnChannels.
  };
  // The rings that this rank writes: to and from each rank, in order.
  std::vector<Channel> OwnChannels(int rank) const;

  static size_t SlotBytes(int size);
  static size_t CallsOffset(int size);
  static size_t RingsOffset(int size);

  RankArea& area(int rank) const;
  FailureRecord& failure_record() const;
  CallSlot& slot(int rank, uint64_t number) const;
  // The ring of `rank`, which is one end of `channel`.
  MessageRing& ring(const Channel& channel, int rank) const;
  int OtherEnd(const Channel& channel) const {
    return channel.src == rank_ ? channel.dst : channel.src;
  }
  size_t IndexOf(const Channel& channel) const {
    return static_cast<size_t>(channel.src) * static_cast<size_t>(size_) +
           static_cast<size_t>(channel.dst);
  }
  void WakeRank(int rank) const;

  bool HasPlace(const Channel& channel) const;
  void PublishOne(const Channel& channel, const backends::CallFingerprint& message);
  void PublishWaiting(const Channel& channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::StatusOr<backends::CallDescription> CallOf(int rank, uint64_t number) const;
  DeviceUse UseOf(int rank, uint64_t number) const;
  absl::Status CompareOne(uint64_t number, int other) const;
  absl::Status CompareSplits(uint64_t number) const;

  char* const memory_;
  const backends::PeerTable peers_;
  const MismatchCheck check_;
  const int rank_;
  const int size_;

  mutable absl::Mutex mutex_;  // Serialises comparisons, so that each is made once.
  absl::Status mismatch_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> compared_with_ ABSL_GUARDED_BY(mutex_);  // By rank.
  // By IndexOf: the messages of this rank that have no place yet, in order.
  std::map<size_t, std::deque<backends::CallFingerprint>> waiting_ ABSL_GUARDED_BY(mutex_);
  Taken taken_;  // Of the thread that calls TakeChanges.
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_FINGERPRINT_BOARD_H_
