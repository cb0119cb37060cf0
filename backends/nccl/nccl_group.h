// One rank's end of a group: what its calls, its communicators and its watchdog share.
#ifndef SYNCLINE_BACKENDS_NCCL_NCCL_GROUP_H_
#define SYNCLINE_BACKENDS_NCCL_NCCL_GROUP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/call_description.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/nccl/fingerprint_board.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "core/tensor/segment.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/device.h"

namespace syncline::nccl {

// The warnings about a call that waits for long.
struct CallStall {
  base::StallTimer timer;
  base::StallNotice notice;
};

// A call of this rank that is on the board: one collective, or several that were passed together.
struct PublishedCall {
  PublishedCall(const CallContext& context)  // NOLINT: the call of a context.
      : description(context), deadline(context.deadline) {}

  backends::CallDescription description;  // Of the first of several.
  Deadline deadline;
  uint64_t last_collective = 0;  // The number of the last one; 0 if there are messages only.
  struct Messages {              // Of one channel.
    Channel channel;
    uint64_t last;  // The number of the last one.
    uint64_t count;
  };
  absl::InlinedVector<Messages, 1> messages;
  // Of NcclGroup::Check, which one thread at a time calls; dropped once the call has ended.
  mutable std::shared_ptr<CallStall> stall;
};

// Decides why a call must end before it is done, and keeps the error with which all later calls
// of this rank end. Thread-safe.
class NcclGroup {
 public:
  NcclGroup(tensor::Segment memory, backends::PeerTable peers, backends::PeerProcesses processes,
            MismatchCheck check);

  FingerprintBoard& board() { return board_; }

  // The number of a device among those that this rank's calls have used, in the order of their
  // first use, from 0: which of the group's communicators a call takes, and so a part of what ranks
  // compare. It is the next one for a device that none has used.
  int NumberOf(const Device& device);

  const backends::PeerTable& peers() const { return board_.peers(); }
  int rank() const { return board_.rank(); }
  int size() const { return board_.size(); }

  // Publishes each of the calls, in order, and waits while the board has no room for one, which is
  // when this rank is kCalls collectives ahead of another, or kWaitingMessages messages. Errors:
  // those of Check, and of an interrupt.
  absl::Status Publish(absl::Span<const Collective> collectives, const CallContext& context,
                       PublishedCall& call);

  // OK if all ranks of the call have published the same; nothing if that is not known yet. A
  // mismatch fails the group.
  std::optional<absl::Status> Verdict(const PublishedCall& call);

  // Whether Verdict would be OK; changes nothing.
  bool HasAgreed(const PublishedCall& call);

  // Why the call must end though its work has not: the group has failed, the ranks' calls differ, a
  // rank that it needs has left, one has died, or its deadline has passed. Such an error fails the
  // group on all ranks. Reads what is in memory, except that it asks the kernel every
  // kPeerInterval.
  absl::Status Check(const PublishedCall& call);

  // The call has ended well, or a graph has it.
  void Finish(const PublishedCall& call);

  // Whether graphs have work of this group. When they are launched nobody knows: so the watchdog
  // calls CheckPeers, which fails the group if one has died, though no call is pending.
  void SetCaptured() { has_captured_ = true; }
  bool has_captured() const { return has_captured_; }
  void CheckPeers();

  // Fails the group on all ranks, unless it has failed. Returns the error for a call of this rank,
  // `call` if there is one; which is the same from then on.
  absl::Status Fail(const absl::Status& cause, const backends::CallDescription* call = nullptr);

  // The error with which the calls of this rank end: OK while the group is usable. See Fail.
  absl::Status Failure(const backends::CallDescription* call = nullptr);

  // Ends this rank's part with `cause`. `has_calls` says whether some are under way, which the
  // others may wait for: then the group fails, and else this rank leaves it. It is called once no
  // call can begin any more. Only the first Close does anything.
  void Close(const absl::Status& cause, absl::FunctionRef<bool()> has_calls);

  // Whether this rank has left while nothing was under way, and the group has not failed since.
  bool has_left() const { return is_closed_.load() && !board_.has_failed(); }

  // After Close: why this rank need not wait for the others' part in its leaving. OK if they are
  // there.
  absl::Status CheckLeaving();

  // Whether no call may begin any more, for whichever of these reasons.
  bool is_over() const { return is_closed_.load() || board_.has_failed(); }

  // What watches the other hosts says that a rank of one has ended.
  void SetLost(const absl::Status& lost);

  // Of the watchdog: what the device still did for the group has ended, or has been given up.
  void SetQuiet() {
    absl::MutexLock lock(&mutex_);
    is_quiet_ = true;
  }
  void AwaitQuiet();

  static constexpr absl::Duration kPeerInterval = absl::Milliseconds(20);

 private:
  absl::Status CheckLeft(const PublishedCall& call) const;
  absl::Status CheckDead();
  // Warns if the call has waited for long for ranks that have not made it.
  void WarnOfStall(const PublishedCall& call) const;
  bool LowerRankWaits(const PublishedCall& call) const;
  std::vector<int> MissingRanks(const PublishedCall& call) const;
  absl::Status DescribeTimeout(const PublishedCall& call) const;
  std::vector<int> LateRanks(const PublishedCall& call) const;

  const tensor::Segment memory_;  // Of the board.
  const backends::PeerProcesses processes_;
  FingerprintBoard board_;
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> has_captured_{false};

  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // OK while this rank can be used.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_check_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool is_quiet_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Device> devices_ ABSL_GUARDED_BY(mutex_);  // By number.
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_NCCL_GROUP_H_
