#include "backends/shm/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backends/common/call_description.h"
#include "backends/shm/last_call.h"
#include "core/tensor/copy_bytes.h"
#include "syncline/backend.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// The type comes from memory that other processes write, so it may be out of range: then another
// stands for it.
backends::CallDescription CallOf(const MessageSlot& slot, int dst) {
  const size_t dtype = std::min<size_t>(slot.dtype, AllDTypes().size() - 1);
  backends::CallDescription call{OpKind::kSend, slot.sequence, static_cast<DType>(dtype),
                                 slot.count};
  call.peer = dst;
  call.tag = slot.tag.load(std::memory_order_relaxed);
  return call;
}

// Records a message while this lives, for messages about ranks that are late.
class ScopedMessage {
 public:
  ScopedMessage(const CallContext& call, RankRegion& own) : call_(call), own_(own) {
    RecordCall(call, own_.last_message);
  }
  ~ScopedMessage() { RecordCall(call_, own_.last_call); }

 private:
  const CallContext& call_;
  RankRegion& own_;
};

}  // namespace

class PointToPoint::OpenReceive final : public backends::TwinReceive {
 public:
  OpenReceive(PointToPoint& owner, int tag) : owner_(owner), posted_{kAnySource, tag, this} {}
  ~OpenReceive() override {
    if (has_been_posted_) owner_.Withdraw(posted_);
  }

  bool Post() override {
    has_been_posted_ = true;
    return owner_.PostUnlessMatched(posted_);
  }
  bool HasMatched() override { return owner_.HasMatch(posted_); }

  void BeginSleep() override {
    // Before the thread counts as a sleeper: see NotifyOfMessage.
    own().sleeps_elsewhere.fetch_add(1);
    owner_.group_.waiter().BeginSleep(own().message_event);
  }
  void EndSleep() override {
    owner_.group_.waiter().EndSleep(own().message_event);
    own().sleeps_elsewhere.fetch_sub(1);
  }

  PostedReceive& posted() { return posted_; }

 private:
  RankRegion& own() const { return owner_.layout_.region(owner_.rank()); }

  PointToPoint& owner_;
  PostedReceive posted_;
  bool has_been_posted_ = false;
};

PointToPoint::PointToPoint(ShmGroup& group, NodeOptions node)
    : group_(group),
      node_(std::move(node)),
      layout_(group.layout()),
      next_slots_(layout_.size()),
      rendezvous_peers_(layout_.sizes().rendezvous_buffers, -1),
      sources_(layout_.size()) {}

absl::Status PointToPoint::Send(const Tensor& tensor, int dst, const CallContext& call) {
  const WaitContext context = {call, call.deadline};
  const ScopedMessage scope(call, group_.own_region());
  base::EventCount& own_event = group_.own_region().message_event;
  const size_t bytes = tensor.nbytes();
  const bool leaves_one = !node_.ranks.empty() && call.collective->tag >= 0;
  MessageSlot* claimed = TryClaimSlot(dst, bytes, leaves_one);
  if (claimed == nullptr) {
    SYNCLINE_RETURN_IF_ERROR(group_.waiter().AwaitMessage(own_event, dst, context, [&] {
      return claimed != nullptr || (claimed = TryClaimSlot(dst, bytes, leaves_one)) != nullptr;
    }));
  }
  MessageSlot& slot = *claimed;
  slot.tag.store(static_cast<int>(call.collective->tag), std::memory_order_relaxed);
  slot.sequence = call.sequence;
  slot.count = tensor.numel();
  slot.dtype = static_cast<uint16_t>(tensor.dtype());
  const bool is_inline = bytes <= kInlineMaxBytes;
  const bool is_eager = is_inline || slot.eager_payload() < kEagerPayloads;
  char* payload = nullptr;
  size_t copied = 0;
  if (is_inline) {
    if (bytes > 0) std::memcpy(slot.inline_data, tensor.data(), bytes);
  } else if (is_eager) {
    payload = layout_.eager_payload(rank(), slot.eager_payload());
    copied = FirstPiece(bytes);
    copier_.Copy(payload, tensor.data(), copied);
    slot.position.store(copied, std::memory_order_relaxed);
  } else {
    const bool may_be_read = group_.OffersAddress(OpKind::kSend, bytes, copier_);
    slot.set_address(may_be_read ? reinterpret_cast<uint64_t>(tensor.data()) : 0);
  }
  // The next send will write the next slot, which was fetched during the last one, and look at the
  // state of the one after it, which the receiver has written. Chosen now: once the slot is posted,
  // it may be reused.
  const MessageSlot& after_next =
      layout_.message_slot(rank(), dst, SlotAfter(slot.next, PreferredSlots()));
  const char* next_payload = nullptr;
  if (payload != nullptr) {
    next_payload = layout_.eager_payload(rank(), (slot.eager_payload() + 1) % kEagerPayloads);
  }
  // Pairs with the acquire load in HasIncomingFrom: the receiver sees all fields and the data.
  slot.state.store(MessageSlot::kPosted, std::memory_order_release);
  NotifyOfMessage(dst);
  while (payload != nullptr && copied < bytes) {
    const size_t piece = std::min(kEagerPieceBytes, bytes - copied);
    copier_.Copy(payload + copied, tensor.data_as<char>() + copied, piece);
    copied += piece;
    // Pairs with the acquire load in TakePayload. With the last piece the slot is the receiver's.
    slot.position.store(copied, std::memory_order_release);
    group_.waiter().Notify(layout_.region(dst).message_event);
  }
  PrefetchToWrite(&after_next);
  // The same for the data, of which the receiver of an earlier message has the lines.
  const size_t fetched = next_payload == nullptr ? 0 : std::min(bytes, kPrefetchedPayloadBytes);
  for (size_t at = 0; at < fetched; at += base::kCacheLine) PrefetchToWrite(next_payload + at);
  if (is_eager) return absl::OkStatus();
  uint32_t state = MessageSlot::kPosted;
  // Pairs with the release stores of kMatched and kRead in Recv.
  SYNCLINE_RETURN_IF_ERROR(group_.waiter().AwaitMessage(own_event, dst, context, [&] {
    state = slot.state.load(std::memory_order_acquire);
    return state == MessageSlot::kMatched || state == MessageSlot::kRead;
  }));
  if (state == MessageSlot::kRead) {
    slot.state.store(MessageSlot::kFree, std::memory_order_release);
    group_.waiter().Notify(own_event);  // Another thread may wait for a slot.
    return absl::OkStatus();
  }
  return SendRendezvous(tensor, dst, slot, context);
}

absl::StatusOr<int> PointToPoint::Recv(const Tensor& tensor, int source, const CallContext& call) {
  const ScopedMessage scope(call, group_.own_region());
  PostedReceive mine = {source, static_cast<int>(call.collective->tag)};
  SYNCLINE_RETURN_IF_ERROR(AwaitMatch(mine, {call, call.deadline}));
  return TakeMatched(mine, tensor, call);
}

std::unique_ptr<backends::TwinReceive> PointToPoint::NewReceive(int tag) {
  return std::make_unique<OpenReceive>(*this, tag);
}

absl::StatusOr<int> PointToPoint::Complete(backends::TwinReceive& receive, const Tensor& tensor,
                                           const CallContext& call) {
  const ScopedMessage scope(call, group_.own_region());
  return TakeMatched(static_cast<OpenReceive&>(receive).posted(), tensor, call);
}

absl::StatusOr<int> PointToPoint::TakeMatched(PostedReceive& mine, const Tensor& tensor,
                                              const CallContext& call) {
  const WaitContext context = {call, call.deadline};
  // Relaxed: whoever has seen the match has loaded it with acquire, or set it on this thread.
  MessageSlot& slot = *mine.slot.load(std::memory_order_relaxed);
  if (slot.count != tensor.numel() || slot.dtype != static_cast<uint16_t>(tensor.dtype())) {
    const int self = NameOf(rank());
    return group_.failure_cell().Fail(
        backends::CheckFits(CallOf(slot, self), NameOf(mine.sender), context.Describe(), self));
  }
  const size_t bytes = tensor.nbytes();
  if (mine.buffered != nullptr) {
    tensor::CopyBytes(tensor.data(), mine.buffered->data.data(), bytes);
    return mine.sender;
  }
  const bool is_inline = bytes <= kInlineMaxBytes;
  if (!is_inline && slot.eager_payload() >= kEagerPayloads) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_read,
                              TryReadByAddress(tensor, mine.sender, slot, context));
    if (is_read) return mine.sender;
    // Hands the slot to the sender. Pairs with the acquire load in Send.
    slot.state.store(MessageSlot::kMatched, std::memory_order_release);
    group_.waiter().Notify(layout_.region(mine.sender).message_event);
    SYNCLINE_RETURN_IF_ERROR(RecvRendezvous(tensor, mine.sender, slot, context));
    return mine.sender;
  }
  if (!is_inline && bytes > layout_.sizes().eager_payload) {
    return group_.FailDamaged(mine.sender, absl::StrCat("an eager message of ", bytes, " bytes"));
  }
  if (is_inline) {
    tensor::CopyBytes(tensor.data(), slot.inline_data, bytes);
  } else {
    SYNCLINE_RETURN_IF_ERROR(TakePayload(tensor, mine.sender, slot, context));
  }
  // After the last read of the data. Pairs with the acquire load in Reclaim.
  slot.state.store(MessageSlot::kReceived, std::memory_order_release);
  group_.waiter().Notify(layout_.region(mine.sender).message_event);
  return mine.sender;
}

absl::Status PointToPoint::TakePayload(const Tensor& tensor, int src, const MessageSlot& slot,
                                       const WaitContext& context) {
  const char* const data = layout_.eager_payload(src, slot.eager_payload());
  base::EventCount& own_event = group_.own_region().message_event;
  for (size_t done = 0; done < tensor.nbytes();) {
    // Pairs with the release stores in Send.
    const auto copied = [&] { return slot.position.load(std::memory_order_acquire); };
    if (copied() <= done) {
      SYNCLINE_RETURN_IF_ERROR(
          group_.waiter().AwaitMessage(own_event, src, context, [&] { return copied() > done; }));
    }
    const size_t end = std::min<size_t>(copied(), tensor.nbytes());
    tensor::CopyBytes(tensor.data_as<char>() + done, data + done, end - done);
    done = end;
  }
  return absl::OkStatus();
}

// The receiver follows the chain of slots, so a slot is posted only after its successor has been
// chosen, and that one must be free until the next send.
MessageSlot* PointToPoint::TryClaimSlot(int dst, size_t bytes, bool leaves_one) {
  base::BiasedMutexLock lock(&claims_mutex_);
  const uint32_t index = next_slots_[dst], next = FreeAfter(dst, index);
  if (next == index) return nullptr;
  MessageSlot& slot = layout_.message_slot(rank(), dst, index);
  slot.state.store(MessageSlot::kClaimed, std::memory_order_relaxed);
  if (leaves_one && FreeAfter(dst, next) == next) {
    slot.state.store(MessageSlot::kFree, std::memory_order_relaxed);
    return nullptr;
  }
  next_slots_[dst] = slot.next = next;
  if (bytes > kInlineMaxBytes) slot.set_eager_payload(ClaimEagerPayload(slot, bytes));
  return &slot;
}

// The index of a free slot, or `slot` if there is no other. A few are used in turn as long as they
// suffice, so that they stay in the caches.
uint32_t PointToPoint::FreeAfter(int dst, uint32_t slot) {
  const uint32_t count = static_cast<uint32_t>(layout_.sizes().message_slots);
  const uint32_t preferred = PreferredSlots();
  for (const uint32_t most : {preferred, count}) {
    uint32_t next = slot;
    for (uint32_t i = 1; i < most; ++i) {
      next = SlotAfter(next, most);
      if (Reclaim(layout_.message_slot(rank(), dst, next))) return next;
    }
  }
  return slot;
}

// Returns whether the slot is free, after freeing it if its message has been received.
bool PointToPoint::Reclaim(MessageSlot& slot) {
  // Pairs with the release store of kReceived in Recv, or of kFree in SendRendezvous, whose thread
  // may be another.
  const uint32_t state = slot.state.load(std::memory_order_acquire);
  if (state != MessageSlot::kReceived) return state == MessageSlot::kFree;
  // An inline message has data there, which may look like the index of a buffer.
  const uint64_t payload = slot.eager_payload();
  if (payload < kEagerPayloads && payload_slots_[payload] == &slot) {
    payload_slots_[payload] = nullptr;
  }
  slot.state.store(MessageSlot::kFree, std::memory_order_relaxed);
  return true;
}

uint64_t PointToPoint::ClaimEagerPayload(MessageSlot& slot, size_t bytes) {
  if (bytes > layout_.sizes().eager_payload) return MessageSlot::kNoEagerPayload;
  // In turn, past those of messages that wait for their receives.
  for (uint64_t i = 0; i < kEagerPayloads; ++i) {
    const uint64_t payload = (next_payload_ + i) % kEagerPayloads;
    if (payload_slots_[payload] != nullptr && !Reclaim(*payload_slots_[payload])) continue;
    payload_slots_[payload] = &slot;
    next_payload_ = (payload + 1) % kEagerPayloads;
    return payload;
  }
  return MessageSlot::kNoEagerPayload;
}

bool PointToPoint::TryTakeNext(PostedReceive& mine) {
  const int source = mine.source;
  if (source == kAnySource || !sources_[source].unexpected.empty()) return false;
  const bool is_alone =
      posted_receives_.empty() || (posted_receives_.size() == 1 && posted_receives_[0] == &mine);
  if (!is_alone || !HasIncomingFrom(source)) return false;
  if (NextFrom(source).tag.load(std::memory_order_relaxed) != mine.tag) return false;
  mine.sender = source;
  mine.slot.store(&TakeIncoming(source), std::memory_order_relaxed);  // Read by this thread alone.
  posted_receives_.clear();
  return true;
}

absl::Status PointToPoint::AwaitMatchSlowly(PostedReceive& mine, const WaitContext& context) {
  if (PostUnlessMatched(mine)) return absl::OkStatus();
  base::EventCount& own_event = group_.own_region().message_event;
  const absl::Status status =
      group_.waiter().AwaitMessage(own_event, mine.source, context, [&] { return HasMatch(mine); });
  if (!status.ok()) Withdraw(mine);
  return status;
}

bool PointToPoint::PostUnlessMatched(PostedReceive& mine) {
  base::BiasedMutexLock lock(&match_mutex_);
  Match(mine.source);
  if (MatchUnexpected(mine)) return true;
  posted_receives_.push_back(&mine);
  return false;
}

bool PointToPoint::HasMatch(PostedReceive& mine) {
  // Pairs with the release store in MatchFrom, on the thread that matched.
  const auto has_slot = [&] { return mine.slot.load(std::memory_order_acquire) != nullptr; };
  if (has_slot()) return true;
  if (!HasIncoming(mine.source)) return false;
  base::BiasedMutexLock lock(&match_mutex_);
  if (has_slot() || TryTakeNext(mine)) return true;
  Match(mine.source);
  return has_slot();
}

// Other threads may not match it any more: it is about to end.
void PointToPoint::Withdraw(PostedReceive& mine) {
  base::BiasedMutexLock lock(&match_mutex_);
  posted_receives_.erase(std::remove(posted_receives_.begin(), posted_receives_.end(), &mine),
                         posted_receives_.end());
}

bool PointToPoint::HasAnyIncoming() const {
  for (int each = 0; each < layout_.size(); ++each) {
    if (HasIncomingFrom(each)) return true;
  }
  return false;
}

void PointToPoint::Match(int source) {
  if (source != kAnySource) return MatchFrom(source);
  for (int each = 0; each < layout_.size(); ++each) MatchFrom(each);
}

void PointToPoint::MatchFrom(int source) {
  SourceQueue& queue = sources_[source];
  const size_t slots = layout_.sizes().message_slots;
  // As many as there can be when this begins. The sender goes on meanwhile, if slots are handed
  // back: whoever waits for more looks again.
  for (size_t i = 0; i < slots && HasIncomingFrom(source); ++i) {
    MessageSlot& slot = TakeIncoming(source);
    const auto matches = [&](const PostedReceive* it) {
      return it->tag == slot.tag.load(std::memory_order_relaxed) &&
             (it->source == kAnySource || it->source == source) && it->Claim();
    };
    const auto it = std::find_if(posted_receives_.begin(), posted_receives_.end(), matches);
    if (it == posted_receives_.end()) {
      const size_t index = IndexOf(slot, source);
      queue.keeps.resize(slots);
      // Then the chain leads back into itself.
      if (queue.keeps[index]) {
        group_.FailDamaged(source, "a chain of messages without an end").IgnoreError();
        return;
      }
      queue.unexpected.push_back({&slot, arrivals_++, nullptr});
      if (queue.slots_kept >= slots / 2 && Buffer(source, queue.unexpected.back())) continue;
      queue.keeps[index] = true;
      ++queue.slots_kept;
      continue;
    }
    PostedReceive& receive = **it;
    posted_receives_.erase(it);
    receive.sender = source;
    // Pairs with the acquire load in HasMatch. The receive may leave the stack at once.
    receive.slot.store(&slot, std::memory_order_release);
    NotifyOfMessage(rank());
  }
}

bool PointToPoint::Buffer(int source, UnexpectedMessage& message) {
  MessageSlot& slot = *message.slot;
  // Read once: another process could change them. What cannot be is left for TakeMatched to tell.
  const int64_t count = slot.count;
  const uint16_t dtype = slot.dtype;
  const size_t most = std::max(kInlineMaxBytes, layout_.sizes().eager_payload);
  if (dtype >= AllDTypes().size() || count < 0 || static_cast<size_t>(count) > most) return false;
  const size_t bytes = count * SizeOf(static_cast<DType>(dtype));
  const bool is_inline = bytes <= kInlineMaxBytes;
  const uint64_t payload = is_inline ? 0 : slot.eager_payload();
  if (bytes > most || payload >= kEagerPayloads) return false;
  // The rest of it is being copied.
  if (!is_inline && slot.position.load(std::memory_order_acquire) != bytes) return false;
  const char* const data = is_inline ? slot.inline_data : layout_.eager_payload(source, payload);
  auto buffered = std::make_unique<BufferedMessage>();
  buffered->data.assign(data, data + bytes);
  if (buffered_bytes_ + buffered->bytes() > kMaxBufferedBytes) return false;
  buffered->slot.tag.store(slot.tag.load(std::memory_order_relaxed), std::memory_order_relaxed);
  buffered->slot.sequence = slot.sequence;
  buffered->slot.count = count;
  buffered->slot.dtype = dtype;
  buffered_bytes_ += buffered->bytes();
  message.slot = &buffered->slot;
  message.buffered = std::move(buffered);
  // As in TakeMatched.
  slot.state.store(MessageSlot::kReceived, std::memory_order_release);
  group_.waiter().Notify(layout_.region(source).message_event);
  return true;
}

bool PointToPoint::MatchUnexpected(PostedReceive& mine) {
  const auto matches = [&](const UnexpectedMessage& it) {
    return it.slot->tag.load(std::memory_order_relaxed) == mine.tag;
  };
  const int first = mine.source == kAnySource ? 0 : mine.source;
  const int end = mine.source == kAnySource ? layout_.size() : mine.source + 1;
  std::deque<UnexpectedMessage>::iterator oldest;
  for (int source = first; source < end; ++source) {
    std::deque<UnexpectedMessage>& unexpected = sources_[source].unexpected;
    const auto it = std::find_if(unexpected.begin(), unexpected.end(), matches);
    if (it == unexpected.end() || (mine.sender >= 0 && it->arrival > oldest->arrival)) continue;
    mine.sender = source;
    oldest = it;
  }
  if (mine.sender < 0 || !mine.Claim()) return false;
  mine.slot.store(oldest->slot, std::memory_order_relaxed);  // Read by this thread alone.
  mine.buffered = std::move(oldest->buffered);
  SourceQueue& queue = sources_[mine.sender];
  if (mine.buffered != nullptr) {
    buffered_bytes_ -= mine.buffered->bytes();
  } else {
    --queue.slots_kept;
    queue.keeps[IndexOf(*oldest->slot, mine.sender)] = false;
  }
  queue.unexpected.erase(oldest);
  return true;
}

absl::StatusOr<bool> PointToPoint::TryReadByAddress(const Tensor& tensor, int src,
                                                    MessageSlot& slot, const WaitContext& context) {
  const uint64_t address = slot.address();
  if (address == 0) return false;
  SYNCLINE_ASSIGN_OR_RETURN(
      const bool is_read,
      group_.ReadByAddress(src, address, tensor.data(), tensor.nbytes(), context.call));
  if (!is_read) return false;
  // As DirectAccess::Finish: the sender may have given up while this rank read.
  SYNCLINE_RETURN_IF_ERROR(group_.failure_cell().CheckIntact(context.call));
  // Pairs with the acquire load in Send.
  slot.state.store(MessageSlot::kRead, std::memory_order_release);
  group_.waiter().Notify(layout_.region(src).message_event);
  return true;
}

int PointToPoint::TryClaimRendezvousBuffer(int dst) {
  base::BiasedMutexLock lock(&claims_mutex_);
  if (std::count(rendezvous_peers_.begin(), rendezvous_peers_.end(), dst) > 0) return -1;
  const auto free = std::find(rendezvous_peers_.begin(), rendezvous_peers_.end(), -1);
  if (free == rendezvous_peers_.end()) return -1;
  *free = dst;
  return static_cast<int>(free - rendezvous_peers_.begin());
}

void PointToPoint::ReleaseRendezvousBuffer(int buffer) {
  {
    base::BiasedMutexLock lock(&claims_mutex_);
    rendezvous_peers_[buffer] = -1;
  }
  // Other threads of this rank may wait for it.
  group_.waiter().Notify(group_.own_region().message_event);
}

// After an error the buffer stays claimed for good: the receiver, if it was stopped, may still read
// there when it goes on.
absl::Status PointToPoint::SendRendezvous(const Tensor& tensor, int dst, MessageSlot& slot,
                                          const WaitContext& context) {
  RankRegion& own = group_.own_region();
  base::EventCount& dst_event = layout_.region(dst).message_event;
  int buffer = -1;
  SYNCLINE_RETURN_IF_ERROR(group_.waiter().AwaitMessage(own.message_event, dst, context, [&] {
    return buffer >= 0 || (buffer = TryClaimRendezvousBuffer(dst)) >= 0;
  }));
  RendezvousProgress& progress = own.rendezvous_progress[buffer];
  const size_t capacity = layout_.sizes().rendezvous_buffer, bytes = tensor.nbytes();
  const size_t chunk = RendezvousChunk(bytes);
  // Chunks begin at multiples of their size, which divides the capacity, so none wraps around.
  const uint64_t start = (progress.written.load() + chunk - 1) / chunk * chunk;
  // Pairs with the release store in RecvRendezvous: its reads are over.
  const auto await_read = [&](uint64_t position) {
    return group_.waiter().AwaitMessage(own.message_event, dst, context, [&] {
      return progress.read.load(std::memory_order_acquire) >= position;
    });
  };
  slot.position.store(start, std::memory_order_relaxed);
  slot.buffer = static_cast<uint16_t>(buffer);
  // Pairs with the acquire load at the beginning of RecvRendezvous.
  slot.state.store(MessageSlot::kTransferring, std::memory_order_release);
  group_.waiter().Notify(dst_event);
  for (size_t done = 0; done < bytes; done += chunk) {
    const size_t size = std::min(chunk, bytes - done);
    const uint64_t end = start + done + size;
    if (done >= capacity) SYNCLINE_RETURN_IF_ERROR(await_read(start + done - capacity + chunk));
    copier_.Copy(layout_.rendezvous_buffer(rank(), buffer) + (start + done) % capacity,
                 tensor.data_as<char>() + done, size);
    // Pairs with the acquire load in RecvRendezvous.
    progress.written.store(end, std::memory_order_release);
    group_.waiter().Notify(dst_event);
  }
  // The buffer may carry another message only when the receiver has read all of this one.
  SYNCLINE_RETURN_IF_ERROR(await_read(start + bytes));
  slot.state.store(MessageSlot::kFree, std::memory_order_release);
  ReleaseRendezvousBuffer(buffer);
  return absl::OkStatus();
}

// Smaller ones let both sides copy at the same time; but where ranks share cores, a core has to
// change from one side to the other for each.
size_t PointToPoint::RendezvousChunk(size_t bytes) const {
  const size_t most = layout_.sizes().rendezvous_buffer / kRendezvousDepth;
  return group_.waiter().is_oversubscribed() ? most : layout_.sizes().ChunkSize(bytes, most);
}

absl::Status PointToPoint::RecvRendezvous(const Tensor& tensor, int src, MessageSlot& slot,
                                          const WaitContext& context) {
  base::EventCount& own_event = group_.own_region().message_event;
  SYNCLINE_RETURN_IF_ERROR(group_.waiter().AwaitMessage(own_event, src, context, [&] {
    return slot.state.load(std::memory_order_acquire) == MessageSlot::kTransferring;
  }));
  // As in SendRendezvous: the two sizes are equal, since the message fits.
  const size_t capacity = layout_.sizes().rendezvous_buffer, bytes = tensor.nbytes();
  const size_t chunk = RendezvousChunk(bytes);
  const uint64_t start = slot.position.load(std::memory_order_relaxed);
  const int buffer = slot.buffer;
  if (buffer >= layout_.sizes().rendezvous_buffers) {
    return group_.FailDamaged(src, absl::StrCat("the rendezvous buffer ", buffer));
  }
  if (start % chunk != 0) return group_.FailDamaged(src, absl::StrCat("the position ", start));
  RendezvousProgress& progress = layout_.region(src).rendezvous_progress[buffer];
  const char* const data = layout_.rendezvous_buffer(src, buffer);
  for (size_t done = 0; done < bytes; done += chunk) {
    const size_t size = std::min(chunk, bytes - done);
    const uint64_t end = start + done + size;
    SYNCLINE_RETURN_IF_ERROR(group_.waiter().AwaitMessage(own_event, src, context, [&] {
      return progress.written.load(std::memory_order_acquire) >= end;
    }));
    tensor::CopyBytes(tensor.data_as<char>() + done, data + (start + done) % capacity, size);
    progress.read.store(end, std::memory_order_release);
    group_.waiter().Notify(layout_.region(src).message_event);
  }
  return absl::OkStatus();
}

}  // namespace syncline::shm
