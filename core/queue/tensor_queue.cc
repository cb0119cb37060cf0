#include "syncline/tensor_queue.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/queue/message.h"
#include "core/queue/queue_layout.h"
#include "core/queue/robust_mutex.h"
#include "core/queue/thread_id.h"
#include "core/queue/wait.h"
#include "core/tensor/segment.h"
#include "core/tensor/segment_handle.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {

using queue::IncomingMessage;
using queue::OutgoingMessage;
using queue::Phase;
using queue::QueueHeader;
using queue::QueueLayout;
using queue::RobustLock;
using queue::Slot;
using queue::StateOf;
using queue::ThreadId;
using queue::ThreadState;

namespace {

// How long a sleep lasts at most. After each the thread looks whether it is interrupted, and
// whether those it waits for live: a process that is killed notifies nobody.
constexpr absl::Duration kSleep = kInterruptInterval;
// While a message is being copied, which takes milliseconds at most, so that a death is noticed
// soon.
constexpr absl::Duration kSleepDuringCopy = absl::Milliseconds(10);

constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

constexpr absl::string_view kHandleBegin = "syncline-queue-1";
constexpr size_t kMostQuoted = 200;

constexpr int kAll = std::numeric_limits<int32_t>::max();

enum class Wait { kUntilDeadline, kNot };

Wait WaitFor(absl::Duration timeout) {
  return timeout > absl::ZeroDuration() ? Wait::kUntilDeadline : Wait::kNot;
}

absl::Status ClosedError() { return BackendError("the queue is closed: nothing can be put"); }

bool IsTimeout(const absl::Status& status) { return KindOf(status) == ErrorKind::kTimeout; }

}  // namespace

// Process-local state is the mapping alone, so that a child of fork can go on with it.
class TensorQueue::Impl {
 public:
  explicit Impl(tensor::Segment segment)
      : segment_(std::move(segment)), layout_(segment_.data()), header_(layout_.header()) {}

  const tensor::Segment& segment() const { return segment_; }
  const QueueHeader& header() const { return header_; }

  absl::Status Put(absl::Span<const Tensor> tensors, absl::string_view note,
                   const Deadline& deadline, Wait wait) {
    SYNCLINE_ASSIGN_OR_RETURN(const OutgoingMessage message, OutgoingMessage::Make(tensors, note));
    if (message.size() > layout_.capacity()) {
      return ArgumentError(absl::StrCat("a message of ", message.size(),
                                        " bytes does not fit the queue, whose capacity is ",
                                        layout_.capacity(), " bytes"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const uint64_t ticket, Reserve(message.size(), deadline, wait));
    Slot& slot = layout_.slot(ticket);
    message.Write(layout_, slot.begin.load(std::memory_order_relaxed));
    // Pairs with the acquire load in Take: who sees kReady sees the bytes. Nobody else changes the
    // state while this thread lives.
    slot.state.store(StateOf(ticket, Phase::kReady), std::memory_order_release);
    queue::Notify(header_.message_event, 1);
    return absl::OkStatus();
  }

  absl::StatusOr<Message> Get(const Deadline& deadline, Wait wait) {
    SYNCLINE_ASSIGN_OR_RETURN(const uint64_t ticket, Take(deadline, wait, nullptr));
    const absl::Cleanup done = [&] { Finish(ticket); };
    SYNCLINE_ASSIGN_OR_RETURN(const IncomingMessage incoming, ReadHead(ticket));
    Message message;
    SYNCLINE_ASSIGN_OR_RETURN(message.tensors, incoming.Allocate());
    incoming.ReadInto(message.tensors);
    message.note = incoming.ReadNote();
    return message;
  }

  absl::StatusOr<std::string> GetInto(absl::Span<const Tensor> tensors, const Deadline& deadline) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string what = absl::StrCat("tensors[", i, "]");
      if (tensors[i].device() != Device()) {
        return UnsupportedError(absl::StrCat(what, " (", tensors[i].ToString(),
                                             "): a TensorQueue holds tensors on the CPU only"));
      }
      SYNCLINE_RETURN_IF_ERROR(tensor::CheckContiguous(tensors[i], what));
      SYNCLINE_RETURN_IF_ERROR(tensor::CheckWritable(tensors[i], what));
    }
    SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(tensors));
    SYNCLINE_ASSIGN_OR_RETURN(const uint64_t ticket,
                              Take(deadline, WaitFor(deadline.timeout()), &tensors));
    const absl::Cleanup done = [&] { Finish(ticket); };
    SYNCLINE_ASSIGN_OR_RETURN(const IncomingMessage incoming, ReadHead(ticket));
    incoming.ReadInto(tensors);
    return incoming.ReadNote();
  }

  absl::Status Close() {
    {
      // Under the lock, so that no put that has seen the queue open gets a ticket later.
      SYNCLINE_ASSIGN_OR_RETURN(const RobustLock lock, LockForPut(Deadline(kCloseTimeout)));
      // Pairs with the acquire load in is_closed: who sees it sees the last `tail`.
      header_.closed.store(1, std::memory_order_release);
    }
    queue::Notify(header_.message_event, kAll);
    queue::Notify(header_.space_event, kAll);
    queue::Notify(header_.turn_event, kAll);
    return absl::OkStatus();
  }

  // Pairs with the release store in Close.
  bool is_closed() const { return header_.closed.load(std::memory_order_acquire) != 0; }

  Stats stats() const {
    // Others change these meanwhile, so the differences are bounded.
    uint64_t head = header_.head.load(std::memory_order_acquire);
    while (IsFree(head)) ++head;
    const uint64_t next = header_.next.load(std::memory_order_acquire);
    const uint64_t tail = header_.tail.load(std::memory_order_acquire);
    const uint64_t messages = next < tail ? tail - next : 0;
    const uint64_t bytes = head < tail ? End(tail) - Begin(head) : 0;
    return {static_cast<int64_t>(std::min(messages, header_.max_messages)),
            std::min<size_t>(bytes, layout_.capacity()),
            header_.lost_puts.load(std::memory_order_relaxed),
            header_.lost_gets.load(std::memory_order_relaxed)};
  }

 private:
  uint64_t Begin(uint64_t ticket) const {
    return layout_.slot(ticket).begin.load(std::memory_order_relaxed);
  }

  // Where the message before `ticket` ends. Requires that there is one.
  uint64_t End(uint64_t ticket) const {
    return Begin(ticket - 1) + layout_.slot(ticket - 1).size.load(std::memory_order_relaxed);
  }

  bool IsInPhase(uint64_t ticket, Phase phase) const {
    // Pairs with the release stores of states: who sees one sees what was written before.
    return layout_.slot(ticket).state.load(std::memory_order_acquire) == StateOf(ticket, phase);
  }

  // Whether the oldest ticket, `head`, is done for good.
  bool IsFree(uint64_t head) const {
    return head < header_.next.load(std::memory_order_acquire) && IsInPhase(head, Phase::kDone);
  }

  // ---- Putting ----

  absl::StatusOr<RobustLock> LockForPut(const Deadline& deadline) {
    return RobustLock::Acquire(header_.put_mutex, deadline, [this] {
      // The last owner may have made the slot's state valid, and not counted it any more. Whatever
      // became of the message since, its state says that the ticket is taken.
      const uint64_t tail = header_.tail.load(std::memory_order_relaxed);
      const uint64_t state = layout_.slot(tail).state.load(std::memory_order_acquire);
      if (state >> 2 == tail + 1) header_.tail.store(tail + 1, std::memory_order_release);
    });
  }

  // A ticket for a message of `size` bytes. The caller writes the message, and makes it kReady.
  absl::StatusOr<uint64_t> Reserve(size_t size, const Deadline& deadline, Wait wait) {
    const ThreadId self = queue::CurrentThread();
    // However this ends, it does not keep its turn. Without the lock, which a stopped process may
    // hold.
    const absl::Cleanup leave = [&] {
      if (header_.first_putter.load(std::memory_order_relaxed) == self) GiveUpTurn(self);
    };
    bool has_yielded = false;
    while (true) {
      {
        SYNCLINE_ASSIGN_OR_RETURN(RobustLock lock, LockForPut(deadline));
        if (is_closed()) return ClosedError();
        const uint64_t first = header_.first_putter.load(std::memory_order_relaxed);
        if (first == 0 || first == self) {
          const absl::optional<uint64_t> ticket = ClaimSlot(size, self);
          if (ticket.has_value()) {
            lock.Release();
            // There may be room for the next one too.
            if (first == 0) queue::Notify(header_.turn_event, 1);
            return *ticket;
          }
          if (wait != Wait::kNot) header_.first_putter.store(self, std::memory_order_relaxed);
        }
      }
      if (wait == Wait::kNot) {
        if (RecoverSpace(self)) continue;
        return TimeoutError("the queue is full");
      }
      if (deadline.Expired()) return PutTimeout(size, deadline);
      SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
      const bool is_first = header_.first_putter.load(std::memory_order_relaxed) == self;
      const auto ready = [&] {
        if (is_closed()) return true;
        const uint64_t first = header_.first_putter.load(std::memory_order_relaxed);
        if (!is_first) return first == 0;
        return first != self || IsFree(header_.head.load(std::memory_order_relaxed));
      };
      if (!has_yielded) {
        has_yielded = true;
        if (queue::YieldUntil(ready)) continue;
      }
      const bool is_being_read =
          IsInPhase(header_.head.load(std::memory_order_relaxed), Phase::kReading);
      queue::SleepOn(is_first ? header_.space_event : header_.turn_event,
                     std::min(is_being_read ? kSleepDuringCopy : kSleep, deadline.Remaining()),
                     ready);
      if (!ready()) RecoverSpace(self);
    }
  }

  // Takes the next ticket, if the queue has room. Requires put_mutex.
  absl::optional<uint64_t> ClaimSlot(size_t size, ThreadId self) {
    const uint64_t tail = header_.tail.load(std::memory_order_relaxed);
    uint64_t head = header_.head.load(std::memory_order_relaxed);
    // Not beyond `next`, which may be behind until LockForGet repairs it: its slot must still say
    // then what became of that ticket.
    while (IsFree(head)) ++head;
    header_.head.store(head, std::memory_order_release);
    if (tail - head >= header_.max_messages) return absl::nullopt;
    // An empty queue begins again where the ring does, whose lines are more likely to be cached.
    const uint64_t begin = head == tail ? 0 : End(tail);
    if (head != tail && begin + size - Begin(head) > layout_.capacity()) return absl::nullopt;
    Slot& slot = layout_.slot(tail);
    slot.begin.store(begin, std::memory_order_relaxed);
    slot.size.store(size, std::memory_order_relaxed);
    slot.writer.store(self, std::memory_order_relaxed);
    slot.writer_pid.store(getpid(), std::memory_order_relaxed);
    // From here on the ticket is taken: see LockForPut. Pairs with IsInPhase: who sees the state
    // sees the fields above.
    slot.state.store(StateOf(tail, Phase::kWriting), std::memory_order_release);
    header_.tail.store(tail + 1, std::memory_order_release);
    return tail;
  }

  // Lets another put be the first that waits, if `thread` is.
  void GiveUpTurn(ThreadId thread) {
    if (header_.first_putter.compare_exchange_strong(thread, 0)) {
      queue::Notify(header_.turn_event, 1);
    }
  }

  // Takes away what keeps puts waiting and will not change by itself: a consumer that died while it
  // copied the oldest message, or a first putter that died or is stopped. Returns whether there was
  // such a thing.
  bool RecoverSpace(ThreadId self) {
    bool has_changed = false;
    const ThreadId first = header_.first_putter.load(std::memory_order_relaxed);
    if (first != 0 && first != self && queue::StateOfThread(first) != ThreadState::kRuns) {
      GiveUpTurn(first);
      has_changed = true;
    }
    const uint64_t head = header_.head.load(std::memory_order_acquire);
    if (IsInPhase(head, Phase::kReading)) {
      // If the slot is another message's by now, the exchange fails.
      const ThreadId reader = layout_.slot(head).reader.load(std::memory_order_relaxed);
      if (queue::StateOfThread(reader) == ThreadState::kDead && Abandon(head, Phase::kReading)) {
        header_.lost_gets.fetch_add(1, std::memory_order_relaxed);
        has_changed = true;
      }
    }
    return has_changed;
  }

  // Makes the message of a dead thread kDone. Returns false if it is no longer in `phase`.
  bool Abandon(uint64_t ticket, Phase phase) {
    uint64_t state = StateOf(ticket, phase);
    return layout_.slot(ticket).state.compare_exchange_strong(state, StateOf(ticket, Phase::kDone));
  }

  absl::Status PutTimeout(size_t size, const Deadline& deadline) const {
    const Stats now = stats();
    std::string text = absl::StrCat("no room for a message of ", size, " bytes after ",
                                    absl::FormatDuration(deadline.timeout()), ": ", now.bytes,
                                    " of ", layout_.capacity(), " bytes are taken, ", now.messages,
                                    " of ", header_.max_messages, " messages wait");
    const uint64_t head = header_.head.load(std::memory_order_acquire);
    if (IsInPhase(head, Phase::kReading)) {
      const ThreadId reader = layout_.slot(head).reader.load(std::memory_order_relaxed);
      absl::StrAppend(&text, "; thread ", reader & UINT32_MAX, " receives the oldest one",
                      StoppedOrNothing(reader));
    }
    return TimeoutError(text);
  }

  static absl::string_view StoppedOrNothing(ThreadId thread) {
    return queue::StateOfThread(thread) == ThreadState::kStopped ? " and is stopped" : "";
  }

  // ---- Getting ----

  absl::StatusOr<RobustLock> LockForGet(const Deadline& deadline) {
    return RobustLock::Acquire(header_.get_mutex, deadline, [this] {
      // The last owner may have taken a message, and not counted it any more.
      const uint64_t next = header_.next.load(std::memory_order_relaxed);
      if (IsInPhase(next, Phase::kReading) || IsInPhase(next, Phase::kDone)) {
        header_.next.store(next + 1, std::memory_order_release);
      }
    });
  }

  // The ticket of the oldest message, if it fits `into`, where that is not null. The caller reads
  // it, and calls Finish.
  absl::StatusOr<uint64_t> Take(const Deadline& deadline, Wait wait,
                                const absl::Span<const Tensor>* into) {
    const ThreadId self = queue::CurrentThread();
    bool has_yielded = false;
    while (true) {
      uint64_t ticket;
      {
        SYNCLINE_ASSIGN_OR_RETURN(RobustLock lock, LockForGet(deadline));
        ticket = header_.next.load(std::memory_order_relaxed);
        if (IsInPhase(ticket, Phase::kReady)) {
          if (into != nullptr) {
            SYNCLINE_ASSIGN_OR_RETURN(const IncomingMessage incoming, ReadHead(ticket));
            SYNCLINE_RETURN_IF_ERROR(incoming.CheckFits(*into));
          }
          Slot& slot = layout_.slot(ticket);
          slot.reader.store(self, std::memory_order_relaxed);
          // From here on the message is taken: see LockForGet. Pairs with IsInPhase: who sees the
          // state sees the reader.
          slot.state.store(StateOf(ticket, Phase::kReading), std::memory_order_release);
          header_.next.store(ticket + 1, std::memory_order_release);
          lock.Release();
          WakeNextConsumer(ticket + 1);
          return ticket;
        }
        // In this order: no ticket is given out once the queue is closed.
        if (is_closed() && header_.tail.load(std::memory_order_acquire) == ticket) {
          return absl::OutOfRangeError("the queue is closed, and all its messages were received");
        }
      }
      const auto ready = [&] {
        const uint64_t next = header_.next.load(std::memory_order_relaxed);
        return IsInPhase(next, Phase::kReady) ||
               (is_closed() && header_.tail.load(std::memory_order_acquire) == next);
      };
      const bool is_being_written = IsInPhase(ticket, Phase::kWriting);
      if (is_being_written && (has_yielded || wait == Wait::kNot)) {
        SYNCLINE_RETURN_IF_ERROR(CheckWriter(ticket, deadline));
      }
      if (wait == Wait::kNot) {
        if (ready()) continue;
        return TimeoutError("no message is ready");
      }
      if (deadline.Expired()) return GetTimeout(ticket, deadline);
      SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
      if (!has_yielded) {
        has_yielded = true;
        if (queue::YieldUntil(ready) || is_being_written) continue;
      }
      queue::SleepOn(header_.message_event,
                     std::min(is_being_written ? kSleepDuringCopy : kSleep, deadline.Remaining()),
                     ready);
    }
  }

  // Each put wakes one consumer. That one may have found an older message still being written, and
  // slept on, so whoever takes a message sees to the next.
  void WakeNextConsumer(uint64_t next) {
    if (is_closed()) {
      queue::Notify(header_.message_event, kAll);
    } else if (IsInPhase(next, Phase::kReady)) {
      queue::Notify(header_.message_event, 1);
    }
  }

  // If the producer of `ticket` has died, skips the message, and returns the error that says so.
  absl::Status CheckWriter(uint64_t ticket, const Deadline& deadline) {
    const Slot& slot = layout_.slot(ticket);
    const ThreadId writer = slot.writer.load(std::memory_order_relaxed);
    const int32_t pid = slot.writer_pid.load(std::memory_order_relaxed);
    if (queue::StateOfThread(writer) != ThreadState::kDead) return absl::OkStatus();
    {
      SYNCLINE_ASSIGN_OR_RETURN(const RobustLock lock, LockForGet(deadline));
      // It may have made the message kReady before it died, or another consumer been faster. If the
      // slot was another message's when the fields above were read, the ticket is no longer next.
      if (header_.next.load(std::memory_order_relaxed) != ticket) return absl::OkStatus();
      if (!Abandon(ticket, Phase::kWriting)) return absl::OkStatus();
      header_.next.store(ticket + 1, std::memory_order_release);
    }
    header_.lost_puts.fetch_add(1, std::memory_order_relaxed);
    WakeNextConsumer(ticket + 1);
    queue::Notify(header_.space_event, 1);
    return NetworkError(
        absl::StrCat("the process with pid ", pid, " died while it put a message, which is lost"));
  }

  absl::StatusOr<IncomingMessage> ReadHead(uint64_t ticket) const {
    const Slot& slot = layout_.slot(ticket);
    return IncomingMessage::Read(layout_, slot.begin.load(std::memory_order_relaxed),
                                 slot.size.load(std::memory_order_relaxed));
  }

  void Finish(uint64_t ticket) {
    // Pairs with the acquire load in ClaimSlot: who writes to these bytes of the ring next does so
    // after they have been read.
    layout_.slot(ticket).state.store(StateOf(ticket, Phase::kDone), std::memory_order_release);
    queue::Notify(header_.space_event, 1);
  }

  absl::Status GetTimeout(uint64_t ticket, const Deadline& deadline) const {
    std::string text = absl::StrCat("no message after ", absl::FormatDuration(deadline.timeout()));
    if (IsInPhase(ticket, Phase::kWriting)) {
      const Slot& slot = layout_.slot(ticket);
      absl::StrAppend(&text, "; the process with pid ",
                      slot.writer_pid.load(std::memory_order_relaxed), " is putting one",
                      StoppedOrNothing(slot.writer.load(std::memory_order_relaxed)));
    }
    return TimeoutError(text);
  }

  const tensor::Segment segment_;
  const QueueLayout layout_;
  QueueHeader& header_;
};

absl::StatusOr<std::shared_ptr<TensorQueue>> TensorQueue::Create(
    const TensorQueueOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment, queue::MakeQueueSegment(options));
  return std::shared_ptr<TensorQueue>(new TensorQueue(std::make_unique<Impl>(std::move(segment))));
}

absl::StatusOr<std::shared_ptr<TensorQueue>> TensorQueue::Open(int descriptor) {
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment, queue::MapQueueSegment(descriptor));
  return std::shared_ptr<TensorQueue>(new TensorQueue(std::make_unique<Impl>(std::move(segment))));
}

absl::StatusOr<std::shared_ptr<TensorQueue>> TensorQueue::Open(absl::string_view handle) {
  const std::vector<absl::string_view> fields = absl::StrSplit(handle, ',');
  const auto segment = tensor::SegmentHandle::Parse(absl::MakeConstSpan(fields).subspan(1));
  if (fields[0] != kHandleBegin || !segment.ok()) {
    return ArgumentError(absl::StrCat(
        "'", absl::CHexEscape(handle.substr(0, kMostQuoted)), "' is not the handle of a queue: ",
        fields[0] != kHandleBegin ? absl::StrCat("it does not begin with ", kHandleBegin)
                                  : std::string(segment.status().message())));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor, segment->Open());
  return Open(descriptor);
}

TensorQueue::TensorQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorQueue::~TensorQueue() = default;

int TensorQueue::descriptor() const { return impl_->segment().descriptor(); }
absl::StatusOr<std::string> TensorQueue::handle() const {
  SYNCLINE_ASSIGN_OR_RETURN(const auto segment, tensor::SegmentHandle::Make(descriptor()));
  return absl::StrCat(kHandleBegin, ",", absl::StrJoin(segment.Fields(), ","));
}

size_t TensorQueue::capacity() const { return impl_->header().capacity; }
int64_t TensorQueue::max_messages() const {
  return static_cast<int64_t>(impl_->header().max_messages);
}

absl::Status TensorQueue::Put(absl::Span<const Tensor> tensors, absl::string_view note,
                              absl::Duration timeout) {
  return impl_->Put(tensors, note, Deadline::FromFirstWait(timeout), WaitFor(timeout));
}

absl::StatusOr<bool> TensorQueue::TryPut(absl::Span<const Tensor> tensors, absl::string_view note) {
  const absl::Status status =
      impl_->Put(tensors, note, Deadline::FromFirstWait(absl::ZeroDuration()), Wait::kNot);
  if (IsTimeout(status)) return false;
  SYNCLINE_RETURN_IF_ERROR(status);
  return true;
}

absl::StatusOr<TensorQueue::Message> TensorQueue::Get(absl::Duration timeout) {
  return impl_->Get(Deadline::FromFirstWait(timeout), WaitFor(timeout));
}

absl::StatusOr<absl::optional<TensorQueue::Message>> TensorQueue::TryGet() {
  absl::StatusOr<Message> message =
      impl_->Get(Deadline::FromFirstWait(absl::ZeroDuration()), Wait::kNot);
  if (IsTimeout(message.status())) return absl::optional<Message>();
  SYNCLINE_RETURN_IF_ERROR(message.status());
  return absl::optional<Message>(*std::move(message));
}

absl::StatusOr<std::string> TensorQueue::GetInto(absl::Span<const Tensor> tensors,
                                                 absl::Duration timeout) {
  return impl_->GetInto(tensors, Deadline::FromFirstWait(timeout));
}

absl::Status TensorQueue::Close() { return impl_->Close(); }
bool TensorQueue::is_closed() const { return impl_->is_closed(); }
TensorQueue::Stats TensorQueue::stats() const { return impl_->stats(); }

}  // namespace syncline
