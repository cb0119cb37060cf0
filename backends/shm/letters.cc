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
  call.tag = letter.tag.load(std::memory_order_relaxed);
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
  const size_t bytes = tensor.nbytes();
  SYNCLINE_ASSIGN_OR_RETURN(const Claim claim, ClaimLetter(dst, bytes, waiting));
  Letter& letter = board_.letter(rank(), dst, claim.slot);
  letter.tag.store(call.tag, std::memory_order_relaxed);
  letter.sequence = call.sequence;
  letter.count = call.count;
  letter.dtype = static_cast<uint32_t>(call.dtype);
  const bool has_parcel = claim.parcel != Letter::kNoParcel;
  if (bytes > Letter::kPayload) {
    letter.set_parcel(claim.parcel);
    if (has_parcel) writer_.Write(board_.parcel(rank(), claim.parcel), tensor.data(), bytes);
  } else if (bytes > 0) {
    std::memcpy(letter.payload, tensor.data(), bytes);
  }
  const bool comes_along = bytes <= Letter::kPayload || has_parcel;
  letter.state.store(Letter::kPosted, std::memory_order_release);
  vigil_.Ring(board_.area(dst).post);
  const uint32_t awaited = comes_along ? Letter::kReceived : Letter::kTaken;
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(board_.area(rank()).post, dst, waiting, [&] {
    return letter.state.load(std::memory_order_acquire) == awaited;
  }));
  if (!comes_along) SYNCLINE_RETURN_IF_ERROR(Stream(tensor, dst, letter, waiting));
  letter.state.store(Letter::kFree, std::memory_order_relaxed);
  Free(dst, claim);
  return absl::OkStatus();
}

absl::StatusOr<int> Letters::Recv(const Tensor& tensor, const Call& call,
                                  const Deadline& deadline) {
  const Waiting waiting = {call, deadline};
  const ScopedNote note(call, board_.area(rank()));
  const Receipt mine = {call.peer, call.tag};
  {
    absl::MutexLock lock(&receipts_mutex_);
    receipts_.push_back(&mine);
  }
  Found found;
  const absl::Status status = vigil_.Await(board_.area(rank()).post, call.peer, waiting, [&] {
    return found.letter != nullptr || TryTake(mine, found);
  });
  {
    absl::MutexLock lock(&receipts_mutex_);
    receipts_.erase(std::find(receipts_.begin(), receipts_.end(), &mine));
  }
  SYNCLINE_RETURN_IF_ERROR(status);
  Letter& letter = *found.letter;
  const absl::Status fits = CheckFits(CallOf(letter, rank()), found.source, call, rank());
  if (!fits.ok()) return vigil_.Condemn(fits);
  Doorbell& senders = board_.area(found.source).post;
  const size_t bytes = tensor.nbytes();
  const bool is_short = bytes <= Letter::kPayload;
  if (is_short || letter.parcel() < kParcels) {
    const char* const data =
        is_short ? letter.payload : board_.parcel(found.source, letter.parcel());
    if (bytes > 0) std::memcpy(tensor.data(), data, bytes);
    letter.state.store(Letter::kReceived, std::memory_order_release);
    vigil_.Ring(senders);
    return found.source;
  }
  vigil_.Ring(senders);  // It is taken.
  SYNCLINE_RETURN_IF_ERROR(TakeStream(tensor, found.source, letter, waiting));
  return found.source;
}

absl::StatusOr<Letters::Claim> Letters::ClaimLetter(int dst, size_t bytes, const Waiting& waiting) {
  absl::MutexLock lock(&claims_mutex_);
  std::vector<bool>& used = used_[dst];
  size_t slot = 0;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_mutex_) {
    slot = std::find(used.begin(), used.end(), false) - used.begin();
    return slot < used.size() || vigil_.is_condemned();
  };
  if (!settled()) waiting.deadline.Await(claims_mutex_, absl::Condition(&settled));
  if (slot == used.size()) {
    return vigil_.Condemn(TimeoutError("too many messages wait for one rank at the same time"));
  }
  used[slot] = true;
  std::atomic<uint32_t>& count = board_.letter(rank(), dst, 0).used;
  if (count.load(std::memory_order_relaxed) <= slot) {
    count.store(static_cast<uint32_t>(slot) + 1, std::memory_order_relaxed);
  }
  return Claim{slot, ClaimParcel(bytes)};
}

uint64_t Letters::ClaimParcel(size_t bytes) {
  const uint64_t parcel = next_parcel_;
  if (bytes <= Letter::kPayload || bytes > board_.sizes().parcel || parcels_[parcel]) {
    return Letter::kNoParcel;
  }
  parcels_[parcel] = true;
  next_parcel_ = (parcel + 1) % kParcels;
  return parcel;
}

void Letters::Free(int dst, const Claim& claim) {
  absl::MutexLock lock(&claims_mutex_);
  if (claim.parcel != Letter::kNoParcel) parcels_[claim.parcel] = false;
  std::vector<bool>& used = used_[dst];
  used[claim.slot] = false;
  std::atomic<uint32_t>& count = board_.letter(rank(), dst, 0).used;
  uint32_t end = count.load(std::memory_order_relaxed);
  while (end > 1 && !used[end - 1]) --end;
  count.store(end, std::memory_order_relaxed);
}

bool Letters::TryTake(const Receipt& mine, Found& found) {
  if (mine.source != kAnySource) return TryTakeFrom(mine.source, mine, found);
  for (int source = 0; source < board_.size(); ++source) {
    if (TryTakeFrom(source, mine, found)) return true;
  }
  return false;
}

bool Letters::TryTakeFrom(int source, const Receipt& mine, Found& found) {
  const uint32_t used = board_.letter(source, rank(), 0).used.load(std::memory_order_relaxed);
  for (uint32_t slot = 0; slot < used; ++slot) {
    Letter& letter = board_.letter(source, rank(), slot);
    const auto waits = [&] {
      return letter.state.load(std::memory_order_acquire) == Letter::kPosted &&
             letter.tag.load(std::memory_order_relaxed) == mine.tag;
    };
    if (!waits()) continue;
    absl::MutexLock lock(&receipts_mutex_);
    if (!IsFirst(source, mine)) return false;
    if (!waits()) continue;  // Another receive has taken it, and has gone.
    letter.state.store(Letter::kTaken, std::memory_order_release);
    found = {source, &letter};
    return true;
  }
  return false;
}

bool Letters::IsFirst(int source, const Receipt& mine) const {
  const auto end = std::find(receipts_.begin(), receipts_.end(), &mine);
  return std::none_of(receipts_.begin(), end, [&](const Receipt* earlier) {
    return earlier->tag == mine.tag && (earlier->source == kAnySource || earlier->source == source);
  });
}

absl::Status Letters::Stream(const Tensor& tensor, int dst, Letter& letter,
                             const Waiting& waiting) {
  absl::MutexLock lock(&stream_mutex_);
  RankArea& own = board_.area(rank());
  const size_t room = board_.sizes().stream, bytes = tensor.nbytes();
  const size_t piece = board_.sizes().PieceOf(bytes, room / 4);
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
    writer_.Write(board_.stream(rank()) + (start + done) % room, tensor.data_as<char>() + done,
                  size);
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
  const size_t room = board_.sizes().stream, bytes = tensor.nbytes();
  const size_t piece = board_.sizes().PieceOf(bytes, room / 4);
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
