#include "backends/shm/letters.h"

#include <algorithm>
#include <cstring>

#include "backends/shm/call_notes.h"
#include "core/backend.h"
#include "core/status.h"

namespace syncline {
namespace {

Call CallOf(const Letter& letter, int dst) {
  Call call{OpKind::kSend, letter.sequence, static_cast<DType>(letter.dtype), letter.count};
  call.peer = dst;
  call.tag = letter.tag;
  return call;
}

// While a call is under way, for messages.
class ScopedNote {
 public:
  ScopedNote(const Call& call, RankArea& own) : call_(call), own_(own) {
    SetNote(call, own_.message);
    own_.messages_under_way.fetch_add(1);
  }
  ~ScopedNote() {
    SetNote(call_, own_.last);
    own_.messages_under_way.fetch_sub(1);
  }

 private:
  const Call& call_;
  RankArea& own_;
};

}  // namespace

Letters::Letters(Vigil& vigil)
    : vigil_(vigil),
      board_(vigil.board()),
      used_(board_.size(), std::vector<bool>(board_.sizes().letters)) {}

absl::Status Letters::Send(const Tensor& tensor, const Call& call, const Deadline& deadline) {
  const Waiting waiting = {call, deadline};
  const ScopedNote note(call, board_.area(rank()));
  const int dst = call.peer;
  SYNCLINE_ASSIGN_OR_RETURN(const size_t slot, ClaimSlot(dst, waiting));
  Letter& letter = board_.letter(rank(), dst, slot);
  letter.tag = call.tag;
  letter.sequence = call.sequence;
  letter.count = call.count;
  letter.dtype = static_cast<uint32_t>(call.dtype);
  const size_t bytes = tensor.nbytes();
  const bool is_short = bytes <= Letter::kPayload;
  if (is_short && bytes > 0) std::memcpy(letter.payload, tensor.data(), bytes);
  letter.state.store(Letter::kPosted, std::memory_order_release);
  vigil_.Ring(board_.area(dst).post);
  const uint32_t awaited = is_short ? Letter::kReceived : Letter::kTaken;
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(board_.area(rank()).post, dst, waiting, [&] {
    return letter.state.load(std::memory_order_acquire) == awaited;
  }));
  if (!is_short) SYNCLINE_RETURN_IF_ERROR(Stream(tensor, dst, letter, waiting));
  letter.state.store(Letter::kFree, std::memory_order_relaxed);
  FreeSlot(dst, slot);
  return absl::OkStatus();
}

absl::StatusOr<int> Letters::Recv(const Tensor& tensor, const Call& call,
                                  const Deadline& deadline) {
  const Waiting waiting = {call, deadline};
  const ScopedNote note(call, board_.area(rank()));
  std::list<Receipt>::const_iterator mine;
  {
    absl::MutexLock lock(&receipts_mutex_);
    mine = receipts_.insert(receipts_.end(), {call.peer, call.tag});
  }
  Found found;
  const absl::Status status = vigil_.Await(board_.area(rank()).post, call.peer, waiting, [&] {
    return found.letter != nullptr || TryTake(mine, found);
  });
  {
    absl::MutexLock lock(&receipts_mutex_);
    receipts_.erase(mine);
  }
  SYNCLINE_RETURN_IF_ERROR(status);
  Letter& letter = *found.letter;
  const absl::Status fits = CheckFits(CallOf(letter, rank()), found.source, call, rank());
  if (!fits.ok()) return vigil_.Condemn(fits);
  Doorbell& senders = board_.area(found.source).post;
  if (tensor.nbytes() <= Letter::kPayload) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data(), letter.payload, tensor.nbytes());
    letter.state.store(Letter::kReceived, std::memory_order_release);
    vigil_.Ring(senders);
    return found.source;
  }
  vigil_.Ring(senders);  // It is taken.
  SYNCLINE_RETURN_IF_ERROR(TakeStream(tensor, found.source, letter, waiting));
  return found.source;
}

absl::StatusOr<size_t> Letters::ClaimSlot(int dst, const Waiting& waiting) {
  absl::MutexLock lock(&slots_mutex_);
  std::vector<bool>& used = used_[dst];
  size_t slot = 0;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(slots_mutex_) {
    slot = std::find(used.begin(), used.end(), false) - used.begin();
    return slot < used.size() || vigil_.is_condemned();
  };
  if (!waiting.deadline.Await(slots_mutex_, absl::Condition(&settled)) || slot == used.size()) {
    return vigil_.Condemn(TimeoutError("too many messages wait for one rank at the same time"));
  }
  used[slot] = true;
  std::atomic<uint32_t>& count = board_.letter(rank(), dst, 0).used;
  if (count.load(std::memory_order_relaxed) <= slot) {
    count.store(static_cast<uint32_t>(slot) + 1, std::memory_order_relaxed);
  }
  return slot;
}

void Letters::FreeSlot(int dst, size_t slot) {
  absl::MutexLock lock(&slots_mutex_);
  std::vector<bool>& used = used_[dst];
  used[slot] = false;
  std::atomic<uint32_t>& count = board_.letter(rank(), dst, 0).used;
  uint32_t end = count.load(std::memory_order_relaxed);
  while (end > 1 && !used[end - 1]) --end;
  count.store(end, std::memory_order_relaxed);
}

bool Letters::TryTake(std::list<Receipt>::const_iterator mine, Found& found) {
  absl::MutexLock lock(&receipts_mutex_);
  if (mine->source != kAnySource) return TryTakeFrom(mine->source, mine, found);
  for (int source = 0; source < board_.size(); ++source) {
    if (TryTakeFrom(source, mine, found)) return true;
  }
  return false;
}

bool Letters::TryTakeFrom(int source, std::list<Receipt>::const_iterator mine, Found& found) {
  const uint32_t used = board_.letter(source, rank(), 0).used.load(std::memory_order_relaxed);
  for (uint32_t slot = 0; slot < used; ++slot) {
    Letter& letter = board_.letter(source, rank(), slot);
    if (letter.state.load(std::memory_order_acquire) != Letter::kPosted) continue;
    if (letter.tag != mine->tag) continue;
    const bool is_first = std::none_of(receipts_.cbegin(), mine, [&](const Receipt& earlier) {
      return earlier.tag == mine->tag && (earlier.source == kAnySource || earlier.source == source);
    });
    if (!is_first) return false;
    letter.state.store(Letter::kTaken, std::memory_order_release);
    found = {source, &letter};
    return true;
  }
  return false;
}

absl::Status Letters::Stream(const Tensor& tensor, int dst, Letter& letter,
                             const Waiting& waiting) {
  absl::MutexLock lock(&stream_mutex_);
  RankArea& own = board_.area(rank());
  const size_t room = board_.sizes().stream, piece = room / 4, bytes = tensor.nbytes();
  const uint64_t start = (own.streamed.load() + piece - 1) / piece * piece;
  const auto await_read = [&](uint64_t position) {
    return vigil_.Await(own.post, dst, waiting, [&] {
      return own.stream_read.load(std::memory_order_acquire) >= position;
    });
  };
  letter.start = start;
  letter.state.store(Letter::kStreaming, std::memory_order_release);
  vigil_.Ring(board_.area(dst).post);
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    const uint64_t end = start + done + size;
    if (done >= room) SYNCLINE_RETURN_IF_ERROR(await_read(start + done - room + piece));
    std::memcpy(board_.stream(rank()) + (start + done) % room, tensor.data_as<char>() + done, size);
    own.streamed.store(end, std::memory_order_release);
    vigil_.Ring(board_.area(dst).post);
  }
  return await_read(start + bytes);
}

absl::Status Letters::TakeStream(const Tensor& tensor, int src, const Letter& letter,
                                 const Waiting& waiting) {
  RankArea& theirs = board_.area(src);
  Doorbell& own_post = board_.area(rank()).post;
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, src, waiting, [&] {
    return letter.state.load(std::memory_order_acquire) == Letter::kStreaming;
  }));
  const size_t room = board_.sizes().stream, piece = room / 4, bytes = tensor.nbytes();
  const uint64_t start = letter.start;
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    const uint64_t end = start + done + size;
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, src, waiting, [&] {
      return theirs.streamed.load(std::memory_order_acquire) >= end;
    }));
    std::memcpy(tensor.data_as<char>() + done, board_.stream(src) + (start + done) % room, size);
    theirs.stream_read.store(end, std::memory_order_release);
    vigil_.Ring(theirs.post);
  }
  return absl::OkStatus();
}

}  // namespace syncline
