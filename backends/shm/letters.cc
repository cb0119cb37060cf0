#include "backends/shm/letters.h"

#include <algorithm>
#include <cstring>

#include "backends/shm/call_notes.h"
#include "core/base/status.h"
#include "core/group/backend.h"

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
      next_(board_.size()),
      streams_(board_.sizes().streams, -1),
      inboxes_(board_.size()) {}

absl::Status Letters::Send(const Tensor& tensor, const Call& call, const Deadline& deadline) {
  const Waiting waiting = {call, deadline};
  const ScopedNote note(call, board_.area(rank()));
  Doorbell& own_post = board_.area(rank()).post;
  const int dst = call.peer;
  const size_t bytes = tensor.nbytes();
  Letter* claimed = TryClaim(dst, bytes);
  if (claimed == nullptr) {
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, dst, waiting, [&] {
      return claimed != nullptr || (claimed = TryClaim(dst, bytes)) != nullptr;
    }));
  }
  Letter& letter = *claimed;
  letter.tag.store(call.tag, std::memory_order_relaxed);
  letter.sequence = call.sequence;
  letter.count = call.count;
  letter.dtype = static_cast<uint16_t>(call.dtype);
  const bool is_short = bytes <= Letter::kPayload;
  const bool comes_along = is_short || letter.parcel() < kParcels;
  if (is_short) {
    if (bytes > 0) std::memcpy(letter.payload, tensor.data(), bytes);
  } else if (comes_along) {
    writer_.Write(board_.parcel(rank(), letter.parcel()), tensor.data(), bytes);
  }
  // What the next send needs of what the receiver has written, but for the next letter itself,
  // which has been fetched before.
  const Letter& after_next = board_.letter(rank(), dst, (letter.next + 1) % FewLetters());
  letter.state.store(Letter::kPosted, std::memory_order_release);
  vigil_.Ring(board_.area(dst).post);
  PrefetchToWrite(&after_next);
  if (comes_along) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, dst, waiting, [&] {
    return letter.state.load(std::memory_order_acquire) == Letter::kTaken;
  }));
  return Stream(tensor, dst, letter, waiting);
}

absl::StatusOr<int> Letters::Recv(const Tensor& tensor, const Call& call,
                                  const Deadline& deadline) {
  const Waiting waiting = {call, deadline};
  const ScopedNote note(call, board_.area(rank()));
  Receipt mine = {call.peer, call.tag};
  SYNCLINE_RETURN_IF_ERROR(Take(mine, waiting));
  Letter& letter = *mine.letter.load(std::memory_order_relaxed);
  const absl::Status fits = CheckFits(CallOf(letter, rank()), mine.sender, call, rank());
  if (!fits.ok()) return vigil_.Condemn(fits);
  const size_t bytes = tensor.nbytes();
  const bool is_short = bytes <= Letter::kPayload;
  if (!is_short && letter.parcel() >= kParcels) {
    letter.state.store(Letter::kTaken, std::memory_order_release);
    vigil_.Ring(board_.area(mine.sender).post);
    SYNCLINE_RETURN_IF_ERROR(TakeStream(tensor, mine.sender, letter, waiting));
    return mine.sender;
  }
  const char* const data = is_short ? letter.payload : board_.parcel(mine.sender, letter.parcel());
  if (bytes > 0) std::memcpy(tensor.data(), data, bytes);
  letter.state.store(Letter::kReceived, std::memory_order_release);
  vigil_.Ring(board_.area(mine.sender).post);
  return mine.sender;
}

Letter* Letters::TryClaim(int dst, size_t bytes) {
  absl::MutexLock lock(&claims_mutex_);
  const uint32_t slot = next_[dst], next = FreeAfter(dst, slot);
  if (next == slot) return nullptr;
  Letter& letter = board_.letter(rank(), dst, slot);
  next_[dst] = letter.next = next;
  letter.state.store(Letter::kClaimed, std::memory_order_relaxed);
  if (bytes > Letter::kPayload) letter.set_parcel(ClaimParcel(letter, bytes));
  return &letter;
}

// A free letter, or `slot` if there is no other. A few are used in turn as long as they suffice, so
// that they stay in the caches.
uint32_t Letters::FreeAfter(int dst, uint32_t slot) {
  const uint32_t count = static_cast<uint32_t>(board_.sizes().letters);
  const uint32_t few = FewLetters();
  for (uint32_t i = 1; i < few; ++i) {
    const uint32_t next = (slot + i) % few;
    if (Reclaim(board_.letter(rank(), dst, next))) return next;
  }
  for (uint32_t i = 1; i < count; ++i) {
    const uint32_t next = (slot + i) % count;
    if (Reclaim(board_.letter(rank(), dst, next))) return next;
  }
  return slot;
}

// Whether the letter is free, now at the latest.
bool Letters::Reclaim(Letter& letter) {
  const uint32_t state = letter.state.load(std::memory_order_acquire);
  if (state != Letter::kReceived) return state == Letter::kFree;
  const uint64_t parcel = letter.parcel();  // If it had one.
  if (parcel < kParcels && parcels_[parcel] == &letter) parcels_[parcel] = nullptr;
  letter.state.store(Letter::kFree, std::memory_order_relaxed);
  return true;
}

uint64_t Letters::ClaimParcel(Letter& letter, size_t bytes) {
  const uint64_t parcel = next_parcel_;
  if (bytes > board_.sizes().parcel) return Letter::kNoParcel;
  if (parcels_[parcel] != nullptr && !Reclaim(*parcels_[parcel])) return Letter::kNoParcel;
  parcels_[parcel] = &letter;
  next_parcel_ = (parcel + 1) % kParcels;
  return parcel;
}

absl::Status Letters::Take(Receipt& mine, const Waiting& waiting) {
  {
    absl::MutexLock lock(&receipts_mutex_);
    Sort(mine.source);
    if (TakeFromInboxes(mine)) return absl::OkStatus();
    receipts_.push_back(&mine);
  }
  const auto has_letter = [&] { return mine.letter.load(std::memory_order_acquire) != nullptr; };
  const absl::Status status = vigil_.Await(board_.area(rank()).post, mine.source, waiting, [&] {
    if (has_letter()) return true;
    if (!HasCome(mine.source)) return false;
    absl::MutexLock lock(&receipts_mutex_);
    Sort(mine.source);
    return has_letter();
  });
  if (status.ok()) return status;
  absl::MutexLock lock(&receipts_mutex_);
  receipts_.erase(std::remove(receipts_.begin(), receipts_.end(), &mine), receipts_.end());
  return status;
}

bool Letters::HasCome(int source) const {
  if (source == kAnySource) {
    for (int each = 0; each < board_.size(); ++each) {
      if (HasCome(each)) return true;
    }
    return false;
  }
  const uint32_t end = inboxes_[source].end.load(std::memory_order_relaxed);
  return board_.letter(source, rank(), end).state.load(std::memory_order_acquire) ==
         Letter::kPosted;
}

void Letters::Sort(int source) {
  if (source != kAnySource) return SortFrom(source);
  for (int each = 0; each < board_.size(); ++each) SortFrom(each);
}

void Letters::SortFrom(int source) {
  Inbox& inbox = inboxes_[source];
  while (HasCome(source)) {
    Letter& letter = board_.letter(source, rank(), inbox.end.load(std::memory_order_relaxed));
    inbox.end.store(static_cast<uint32_t>(letter.next % board_.sizes().letters),
                    std::memory_order_relaxed);
    const auto wants = [&](const Receipt* it) {
      return it->tag == letter.tag.load(std::memory_order_relaxed) &&
             (it->source == kAnySource || it->source == source);
    };
    const auto it = std::find_if(receipts_.begin(), receipts_.end(), wants);
    if (it == receipts_.end()) {
      inbox.letters.push_back({&letter, arrivals_++});
      continue;
    }
    Receipt& receipt = **it;
    receipts_.erase(it);
    receipt.sender = source;
    receipt.letter.store(&letter, std::memory_order_release);  // It may be gone at once.
    vigil_.Ring(board_.area(rank()).post);
  }
}

bool Letters::TakeFromInboxes(Receipt& mine) {
  const auto is_mine = [&](const Arrival& it) {
    return it.letter->tag.load(std::memory_order_relaxed) == mine.tag;
  };
  const int first = mine.source == kAnySource ? 0 : mine.source;
  const int end = mine.source == kAnySource ? board_.size() : mine.source + 1;
  std::deque<Arrival>::iterator oldest;
  for (int source = first; source < end; ++source) {
    std::deque<Arrival>& letters = inboxes_[source].letters;
    const auto it = std::find_if(letters.begin(), letters.end(), is_mine);
    if (it == letters.end() || (mine.sender >= 0 && it->number > oldest->number)) continue;
    mine.sender = source;
    oldest = it;
  }
  if (mine.sender < 0) return false;
  mine.letter.store(oldest->letter, std::memory_order_relaxed);
  inboxes_[mine.sender].letters.erase(oldest);
  return true;
}

int Letters::TryClaimStream(int dst) {
  absl::MutexLock lock(&claims_mutex_);
  if (std::count(streams_.begin(), streams_.end(), dst) > 0) return -1;
  const auto free = std::find(streams_.begin(), streams_.end(), -1);
  if (free == streams_.end()) return -1;
  *free = dst;
  return static_cast<int>(free - streams_.begin());
}

void Letters::ReleaseStream(int stream) {
  {
    absl::MutexLock lock(&claims_mutex_);
    streams_[stream] = -1;
  }
  vigil_.Ring(board_.area(rank()).post);
}

// A stream whose message has failed is not used again: its receiver may still read there, and go on
// when others send, if it was stopped.
absl::Status Letters::Stream(const Tensor& tensor, int dst, Letter& letter,
                             const Waiting& waiting) {
  RankArea& own = board_.area(rank());
  int stream = -1;
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(
      own.post, dst, waiting, [&] { return stream >= 0 || (stream = TryClaimStream(dst)) >= 0; }));
  StreamProgress& progress = own.streams[stream];
  const size_t room = board_.sizes().stream, bytes = tensor.nbytes();
  const size_t piece = board_.sizes().PieceOf(bytes, room / 4);
  const uint64_t start = (progress.written.load() + piece - 1) / piece * piece;
  const auto await_read = [&](uint64_t position) {
    return vigil_.Await(own.post, dst, waiting,
                        [&] { return progress.read.load(std::memory_order_acquire) >= position; });
  };
  letter.start = start;
  letter.stream = static_cast<uint16_t>(stream);
  letter.state.store(Letter::kStreaming, std::memory_order_release);
  vigil_.Ring(board_.area(dst).post);
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    const uint64_t end = start + done + size;
    if (done >= room) SYNCLINE_RETURN_IF_ERROR(await_read(start + done - room + piece));
    writer_.Write(board_.stream(rank(), stream) + (start + done) % room,
                  tensor.data_as<char>() + done, size);
    progress.written.store(end, std::memory_order_release);
    vigil_.Ring(board_.area(dst).post);
  }
  SYNCLINE_RETURN_IF_ERROR(await_read(start + bytes));
  letter.state.store(Letter::kFree, std::memory_order_release);
  ReleaseStream(stream);
  return absl::OkStatus();
}

absl::Status Letters::TakeStream(const Tensor& tensor, int src, Letter& letter,
                                 const Waiting& waiting) {
  Doorbell& own_post = board_.area(rank()).post;
  SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, src, waiting, [&] {
    return letter.state.load(std::memory_order_acquire) == Letter::kStreaming;
  }));
  const size_t room = board_.sizes().stream, bytes = tensor.nbytes();
  const size_t piece = board_.sizes().PieceOf(bytes, room / 4);
  const uint64_t start = letter.start;
  StreamProgress& progress = board_.area(src).streams[letter.stream];
  const char* const stream = board_.stream(src, letter.stream);
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    const uint64_t end = start + done + size;
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(own_post, src, waiting, [&] {
      return progress.written.load(std::memory_order_acquire) >= end;
    }));
    std::memcpy(tensor.data_as<char>() + done, stream + (start + done) % room, size);
    progress.read.store(end, std::memory_order_release);
    vigil_.Ring(board_.area(src).post);
  }
  return absl::OkStatus();
}

}  // namespace syncline
