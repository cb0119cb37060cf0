#include "backends/nccl/fingerprint_board.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/origin_line.h"
#include "syncline/check.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

using backends::CallDescription;
using backends::CallFingerprint;

// A live rank writes the failure in less; longer means that it died meanwhile.
constexpr absl::Duration kWriteTimeout = absl::Milliseconds(100);

// Distinguishes a recorded call from the zeros of a new board.
constexpr uint64_t kIsRecorded = 1 << 8;

// A request for a communicator without a limit.
constexpr uint32_t kForever = 0xffffffff;

constexpr size_t kFingerprintWords = sizeof(CallFingerprint) / sizeof(int64_t);
constexpr size_t kTextBytes = 4096;

size_t RoundUp(size_t bytes) {
  return (bytes + base::kCacheLine - 1) / base::kCacheLine * base::kCacheLine;
}

// Relaxed, here and in Load: the counters beside them are stored with release and loaded with
// acquire, and a reader of a place that is overwritten meanwhile, as may happen where ranks do not
// compare their calls, only names a wrong call.
void Store(std::atomic<int64_t>* to, absl::Span<const int64_t> words) {
  for (size_t i = 0; i < words.size(); ++i) to[i].store(words[i], std::memory_order_relaxed);
}

std::vector<int64_t> Load(const std::atomic<int64_t>* from, size_t count) {
  std::vector<int64_t> words(count);
  for (size_t i = 0; i < count; ++i) words[i] = from[i].load(std::memory_order_relaxed);
  return words;
}

void StoreFingerprint(std::atomic<int64_t>* to, const CallFingerprint& fingerprint) {
  int64_t words[kFingerprintWords];
  std::memcpy(words, &fingerprint, sizeof(words));
  Store(to, words);
}

CallFingerprint LoadFingerprint(const std::atomic<int64_t>* from) {
  const std::vector<int64_t> words = Load(from, kFingerprintWords);
  CallFingerprint fingerprint;
  std::memcpy(&fingerprint, words.data(), sizeof(fingerprint));
  return fingerprint;
}

// What all_to_all sends to and expects from each rank, if that is always the same number; else -1.
int64_t EvenSplitOf(const Collective& call) {
  if (call.kind != OpKind::kAllToAll) return 0;
  const int64_t first = call.inputs[0].numel();
  for (const auto& list : {call.inputs, call.outputs}) {
    for (const Tensor& tensor : list) {
      if (tensor.numel() != first) return -1;
    }
  }
  return first;
}

// One word of a slot: the number of the device above, its index, or -1 for the CPU, below.
int64_t PackedUse(const FingerprintBoard::DeviceUse& use) {
  const int index = use.device.type == DeviceType::kCpu ? -1 : use.device.index;
  return int64_t{use.number} << 32 | static_cast<uint32_t>(index);
}

// Goes into the fingerprint. 0 for the first device, and so for most calls.
uint64_t SaltOfNumber(int number) {
  return static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15;  // Spreads small numbers.
}

// "second" for 1, "5th" for 4.
std::string Ordinal(int number) {
  constexpr const char* kNames[] = {"first", "second", "third", "fourth"};
  if (number >= 0 && number < 4) return kNames[number];
  return absl::StrCat(number + 1, "th");
}

uint64_t WhatOf(uint8_t kind, int peer) {
  return kIsRecorded | kind | uint64_t{static_cast<uint32_t>(peer)} << 32;
}

}  // namespace

// A published collective. The owner writes it, before it stores RankArea::published.
struct FingerprintBoard::CallSlot {
  std::atomic<int64_t> fingerprint[kFingerprintWords];
  std::atomic<int64_t> even_split;  // See EvenSplitOf.
  std::atomic<int64_t> use;         // See PackedUse.
  std::atomic<int64_t> word_count;
  std::atomic<int64_t> words[1];  // Of the description; as many as MaxWords has.
};

// What a rank has published of one channel of which it is an end.
struct alignas(base::kCacheLine) FingerprintBoard::MessageRing {
  std::atomic<uint64_t> published;
  std::atomic<uint64_t> compared;   // How many the owner has compared with those of the other end.
  std::atomic<uint32_t> requested;  // 0, or the limit of the request; see Requested.
  alignas(base::kCacheLine) std::atomic<int64_t> fingerprints[kMessages][kFingerprintWords];
};

struct alignas(base::kCacheLine) FingerprintBoard::RankArea {
  base::EventCount event;  // The owner's watchdog sleeps there. Others wake it.
  alignas(base::kCacheLine) std::atomic<uint64_t> published;
  std::atomic<uint64_t> compared;  // How many the owner has compared with those of all others.
  std::atomic<uint64_t> finished;
  std::atomic<uint64_t> messages_published, messages_finished;
  // The last message that was published, and the last call that has ended; see WhatOf.
  std::atomic<uint64_t> message_what, message_sequence, last_what, last_sequence;
  alignas(base::kCacheLine) std::atomic<uint32_t> left;  // Released once the reason is valid.
  char leave_reason[512];
};

// The first cause of the group's failure. Whichever rank changes `state` from kNone writes it.
struct alignas(base::kCacheLine) FingerprintBoard::FailureRecord {
  enum State : uint32_t { kNone, kBeingWritten, kWritten };
  std::atomic<uint32_t> state;
  uint32_t kind, reporter, size, origin_size;
  char text[kTextBytes];
};

size_t FingerprintBoard::SlotBytes(int size) {
  return RoundUp(sizeof(CallSlot) + CallDescription::MaxWords(size) * sizeof(int64_t));
}

size_t FingerprintBoard::CallsOffset(int size) {
  return RoundUp(sizeof(FailureRecord)) + static_cast<size_t>(size) * sizeof(RankArea);
}

size_t FingerprintBoard::RingsOffset(int size) {
  return CallsOffset(size) + static_cast<size_t>(size) * kCalls * SlotBytes(size);
}

size_t FingerprintBoard::BytesFor(int size) {
  return RingsOffset(size) +
         2 * static_cast<size_t>(size) * static_cast<size_t>(size) * sizeof(MessageRing);
}

FingerprintBoard::FingerprintBoard(char* memory, backends::PeerTable peers, MismatchCheck check)
    : memory_(memory),
      peers_(std::move(peers)),
      check_(check),
      rank_(peers_.rank()),
      size_(peers_.size()),
      compared_with_(static_cast<size_t>(size_)) {}

FingerprintBoard::RankArea& FingerprintBoard::area(int rank) const {
  return reinterpret_cast<RankArea*>(memory_ + RoundUp(sizeof(FailureRecord)))[rank];
}

FingerprintBoard::FailureRecord& FingerprintBoard::failure_record() const {
  return *reinterpret_cast<FailureRecord*>(memory_);
}

FingerprintBoard::CallSlot& FingerprintBoard::slot(int rank, uint64_t number) const {
  const size_t index = static_cast<size_t>(rank) * kCalls + number % kCalls;
  return *reinterpret_cast<CallSlot*>(memory_ + CallsOffset(size_) + index * SlotBytes(size_));
}

FingerprintBoard::MessageRing& FingerprintBoard::ring(const Channel& channel, int rank) const {
  SYNCLINE_DCHECK(rank == channel.src || rank == channel.dst);
  const size_t index = 2 * IndexOf(channel) + (rank == channel.dst ? 1 : 0);
  return reinterpret_cast<MessageRing*>(memory_ + RingsOffset(size_))[index];
}

uint64_t FingerprintBoard::Published(int rank) const {
  return area(rank).published.load(std::memory_order_acquire);
}

uint64_t FingerprintBoard::Published(const Channel& channel, int rank) const {
  return ring(channel, rank).published.load(std::memory_order_acquire);
}

uint64_t FingerprintBoard::Finished(int rank) const { return area(rank).finished.load(); }

bool FingerprintBoard::HasRoom() const {
  if (!compares()) return true;
  const uint64_t next = Published(rank_) + 1;
  for (int rank = 0; rank < size_; ++rank) {
    // Pairs with the release store in Compare: that rank reads the place no more.
    if (next > area(rank).compared.load(std::memory_order_acquire) + kCalls) return false;
  }
  return true;
}

bool FingerprintBoard::HasRoom(const Channel& channel) const {
  absl::MutexLock lock(&mutex_);
  const auto waiting = waiting_.find(IndexOf(channel));
  return waiting == waiting_.end() || waiting->second.size() < kWaitingMessages;
}

bool FingerprintBoard::HasPlace(const Channel& channel) const {
  if (!compares()) return true;
  const uint64_t next = Published(channel, rank_) + 1;
  for (const int rank : {channel.src, channel.dst}) {
    if (next > ring(channel, rank).compared.load(std::memory_order_acquire) + kMessages) {
      return false;
    }
  }
  return true;
}

uint64_t FingerprintBoard::Publish(const CallContext& context, const DeviceUse& use) {
  const uint64_t number = Published(rank_) + 1;
  CallSlot& own = slot(rank_, number);
  CallFingerprint fingerprint = CallFingerprint::Of(context);
  fingerprint.hash ^= SaltOfNumber(use.number);
  StoreFingerprint(own.fingerprint, fingerprint);
  own.use.store(PackedUse(use), std::memory_order_relaxed);
  if (compares()) {
    own.even_split.store(EvenSplitOf(*context.collective), std::memory_order_relaxed);
    const std::vector<int64_t> words = CallDescription(context).ToWords();
    Store(own.words, words);
    own.word_count.store(static_cast<int64_t>(words.size()), std::memory_order_relaxed);
  }
  // Pairs with the acquire load in Published: the slot is complete.
  area(rank_).published.store(number, std::memory_order_release);
  return number;
}

uint64_t FingerprintBoard::Publish(const Channel& channel, const CallContext& context) {
  const CallFingerprint message = CallFingerprint::Of(context);
  absl::MutexLock lock(&mutex_);
  std::deque<CallFingerprint>& waiting = waiting_[IndexOf(channel)];
  const uint64_t number = Published(channel, rank_) + waiting.size() + 1;
  RankArea& own = area(rank_);
  own.message_what.store(WhatOf(message.kind(), message.peer()), std::memory_order_relaxed);
  own.message_sequence.store(message.sequence, std::memory_order_relaxed);
  own.messages_published.fetch_add(1, std::memory_order_relaxed);
  waiting.push_back(message);
  PublishWaiting(channel);
  return number;
}

void FingerprintBoard::PublishOne(const Channel& channel, const CallFingerprint& message) {
  const uint64_t number = Published(channel, rank_) + 1;
  MessageRing& own = ring(channel, rank_);
  StoreFingerprint(own.fingerprints[number % kMessages], message);
  // Pairs with the acquire load in Published: the fingerprint is complete.
  own.published.store(number, std::memory_order_release);
}

void FingerprintBoard::PublishWaiting(const Channel& channel) {
  std::deque<CallFingerprint>& waiting = waiting_[IndexOf(channel)];
  while (!waiting.empty() && HasPlace(channel)) {
    PublishOne(channel, waiting.front());
    waiting.pop_front();
  }
}

bool FingerprintBoard::HaveAllPublished(uint64_t number) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (Published(rank) < number) return false;
  }
  return true;
}

bool FingerprintBoard::HaveBothPublished(const Channel& channel, uint64_t number) const {
  return Published(channel, channel.src) >= number && Published(channel, channel.dst) >= number;
}

absl::StatusOr<CallDescription> FingerprintBoard::CallOf(int rank, uint64_t number) const {
  const CallSlot& theirs = slot(rank, number);
  const size_t most = CallDescription::MaxWords(size_);
  const int64_t count = theirs.word_count.load(std::memory_order_relaxed);
  auto call = CallDescription::FromWords(
      Load(theirs.words, std::min(most, static_cast<size_t>(std::max<int64_t>(count, 0)))));
  if (!call.ok()) return WithRanks(call.status(), {rank});
  const auto size = static_cast<size_t>(size_);
  if (call->kind == OpKind::kAllToAll &&
      (call->counts.size() != size || call->expected.size() != size)) {
    return WithRanks(
        BackendError(absl::StrCat(peers_.Describe(rank),
                                  " has published an all_to_all of another number of ranks")),
        {rank});
  }
  return call;
}

FingerprintBoard::DeviceUse FingerprintBoard::UseOf(int rank, uint64_t number) const {
  const int64_t use = slot(rank, number).use.load(std::memory_order_relaxed);
  const auto index = static_cast<int32_t>(use & 0xffffffff);
  DeviceUse found;
  if (index >= 0) found.device = {DeviceType::kCuda, index};
  found.number = static_cast<int>(use >> 32);
  return found;
}

absl::Status FingerprintBoard::CompareOne(uint64_t number, int other) const {
  const CallFingerprint own = LoadFingerprint(slot(rank_, number).fingerprint);
  const CallFingerprint theirs = LoadFingerprint(slot(other, number).fingerprint);
  if (own == theirs) return absl::OkStatus();
  const int low = std::min(rank_, other), high = std::max(rank_, other);
  SYNCLINE_ASSIGN_OR_RETURN(const CallDescription a, CallOf(low, number));
  SYNCLINE_ASSIGN_OR_RETURN(const CallDescription b, CallOf(high, number));
  SYNCLINE_RETURN_IF_ERROR(backends::CheckSame(a, low, b, high));
  const DeviceUse use_a = UseOf(low, number), use_b = UseOf(high, number);
  if (use_a.number != use_b.number) {
    const auto quote = [](int rank, const CallDescription& call, const DeviceUse& use) {
      return absl::StrCat("rank ", rank, " called ", call.ToString(), " on ", ToString(use.device),
                          ", the ", Ordinal(use.number), " device that it has used");
    };
    return backends::CallsMismatchError(
        absl::StrCat(
            quote(low, a, use_a), ", ", quote(high, b, use_b),
            ": NCCL has a communicator for each device of a rank, so that all ranks change "
            "from one of their devices to another at the same calls"),
        a, low, b, high);
  }
  return WithRanks(BackendError(absl::StrCat(peers_.Describe(other), " has published ",
                                             b.ToString(), " with a fingerprint of another call")),
                   {other});
}

absl::Status FingerprintBoard::CompareSplits(uint64_t number) const {
  const CallSlot& own = slot(rank_, number);
  if (LoadFingerprint(own.fingerprint).kind() != static_cast<uint8_t>(OpKind::kAllToAll)) {
    return absl::OkStatus();
  }
  const int64_t even = own.even_split.load(std::memory_order_relaxed);
  bool is_even = even >= 0;
  std::vector<CallDescription> calls;
  for (int rank = 0; rank < size_; ++rank) {
    is_even &= slot(rank, number).even_split.load(std::memory_order_relaxed) == even;
  }
  if (is_even) return absl::OkStatus();
  std::vector<const CallDescription*> pointers;
  calls.reserve(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    SYNCLINE_ASSIGN_OR_RETURN(CallDescription call, CallOf(rank, number));
    calls.push_back(std::move(call));
    pointers.push_back(&calls.back());
  }
  return backends::CheckCollective(pointers);
}

std::optional<absl::Status> FingerprintBoard::Compare(uint64_t number) {
  if (!compares()) {
    // Only a barrier waits for the others.
    return HaveAllPublished(number) ? std::optional(absl::OkStatus()) : std::nullopt;
  }
  std::atomic<uint64_t>& compared = area(rank_).compared;
  if (compared.load(std::memory_order_relaxed) >= number) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (!mismatch_.ok()) return mismatch_;
  const uint64_t own = Published(rank_);
  uint64_t all = own;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    uint64_t& with = compared_with_[static_cast<size_t>(rank)];
    for (const uint64_t last = std::min(own, Published(rank)); with < last; ++with) {
      mismatch_ = CompareOne(with + 1, rank);
      if (!mismatch_.ok()) return mismatch_;
    }
    all = std::min(all, with);
  }
  for (uint64_t next = compared.load(std::memory_order_relaxed) + 1; next <= all; ++next) {
    mismatch_ = CompareSplits(next);
    if (!mismatch_.ok()) return mismatch_;
    // Pairs with the acquire load in HasRoom.
    compared.store(next, std::memory_order_release);
  }
  return all >= number ? std::optional(absl::OkStatus()) : std::nullopt;
}

std::optional<absl::Status> FingerprintBoard::Compare(const Channel& channel, uint64_t number) {
  if (!compares()) return absl::OkStatus();
  MessageRing& own = ring(channel, rank_);
  const MessageRing& theirs = ring(channel, OtherEnd(channel));
  if (own.compared.load(std::memory_order_relaxed) >= number) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (!mismatch_.ok()) return mismatch_;
  uint64_t next = own.compared.load(std::memory_order_relaxed) + 1;
  while (true) {
    // What waits for places, which the other end's comparisons and those below have freed.
    PublishWaiting(channel);
    const uint64_t both =
        std::min(Published(channel, channel.src), Published(channel, channel.dst));
    if (next > both) break;
    for (; next <= both; ++next) {
      const CallDescription mine(LoadFingerprint(own.fingerprints[next % kMessages]));
      const CallDescription other(LoadFingerprint(theirs.fingerprints[next % kMessages]));
      mismatch_ = channel.src == rank_ ? backends::CheckFits(mine, channel.src, other, channel.dst)
                                       : backends::CheckFits(other, channel.src, mine, channel.dst);
      if (!mismatch_.ok()) return mismatch_;
      // Pairs with the acquire load in HasPlace: this rank reads the place no more.
      own.compared.store(next, std::memory_order_release);
    }
  }
  return next > number ? std::optional(absl::OkStatus()) : std::nullopt;
}

void FingerprintBoard::Finish(uint64_t number, const CallDescription& call) {
  RankArea& own = area(rank_);
  own.last_what.store(WhatOf(static_cast<uint8_t>(call.kind), call.peer),
                      std::memory_order_relaxed);
  own.last_sequence.store(call.sequence, std::memory_order_relaxed);
  uint64_t finished = own.finished.load(std::memory_order_relaxed);
  while (finished < number && !own.finished.compare_exchange_weak(finished, number)) {
  }
}

void FingerprintBoard::FinishMessages(uint64_t count, const CallDescription& call) {
  RankArea& own = area(rank_);
  own.last_what.store(WhatOf(static_cast<uint8_t>(call.kind), call.peer),
                      std::memory_order_relaxed);
  own.last_sequence.store(call.sequence, std::memory_order_relaxed);
  own.messages_finished.fetch_add(count, std::memory_order_relaxed);
}

std::string FingerprintBoard::LastActivity(int rank) const {
  if (peers_.LivenessOf(rank) == base::Liveness::kStopped) return "its process is stopped";
  const RankArea& theirs = area(rank);
  const auto name = [](uint64_t what, uint64_t sequence) {
    CallFingerprint fingerprint = {};
    fingerprint.packed = CallFingerprint::Pack(static_cast<OpKind>(what & 0xff), DType::kUInt8,
                                               ReduceOp::kSum, static_cast<int32_t>(what >> 32));
    fingerprint.sequence = sequence;
    return CallDescription(fingerprint).ShortName();
  };
  const uint64_t finished = theirs.finished.load();
  const uint64_t published = Published(rank);
  // The places of calls that all have compared, and whose work goes on, may have others by now.
  if (published > finished && published - finished <= kCalls) {
    const CallDescription call(LoadFingerprint(slot(rank, finished + 1).fingerprint));
    return absl::StrCat("it is in ", call.ShortName());
  }
  if (theirs.messages_published.load() > theirs.messages_finished.load()) {
    return absl::StrCat("it is in ", name(theirs.message_what, theirs.message_sequence));
  }
  const uint64_t last = theirs.last_what.load();
  if (published > finished) {
    return (last & kIsRecorded) == 0
               ? "it is in one of its first operations"
               : absl::StrCat("it is in an operation after ", name(last, theirs.last_sequence));
  }
  return absl::StrCat("it is in no operation of this group",
                      (last & kIsRecorded) == 0
                          ? " and has been in none"
                          : absl::StrCat(", its last was ", name(last, theirs.last_sequence)));
}

void FingerprintBoard::Leave(absl::string_view reason) {
  RankArea& own = area(rank_);
  if (own.left.load() != 0) return;
  const size_t size = std::min(reason.size(), sizeof(own.leave_reason) - 1);
  std::memcpy(own.leave_reason, reason.data(), size);
  // Pairs with the acquire load in LeaveReason.
  own.left.store(1, std::memory_order_release);
}

std::optional<std::string> FingerprintBoard::LeaveReason(int rank) const {
  const RankArea& theirs = area(rank);
  if (theirs.left.load(std::memory_order_acquire) == 0) return std::nullopt;
  // Of another process, which may be broken: it need not end with a zero.
  return std::string(theirs.leave_reason,
                     strnlen(theirs.leave_reason, sizeof(theirs.leave_reason)));
}

void FingerprintBoard::FailFor(int reporter, const absl::Status& cause) {
  FailureRecord& record = failure_record();
  uint32_t state = FailureRecord::kNone;
  // The exchange decides which of several ranks is the reporter. The others leave the record alone.
  if (!record.state.compare_exchange_strong(state, FailureRecord::kBeingWritten)) return;
  // A long message loses its end rather than the origin, which is short.
  std::string origin = SerializeOrigin(cause);
  if (origin.size() > kTextBytes) origin.clear();
  const absl::string_view text = cause.message().substr(0, kTextBytes - origin.size());
  std::memcpy(record.text, text.data(), text.size());
  std::memcpy(record.text + text.size(), origin.data(), origin.size());
  record.size = static_cast<uint32_t>(text.size());
  record.origin_size = static_cast<uint32_t>(origin.size());
  record.kind = static_cast<uint32_t>(KindOf(cause));
  record.reporter = static_cast<uint32_t>(reporter);
  // Pairs with the acquire load in failure(): a reader of kWritten sees the fields above.
  record.state.store(FailureRecord::kWritten, std::memory_order_release);
  for (int rank = 0; rank < size_; ++rank) WakeRank(rank);
}

bool FingerprintBoard::has_failed() const {
  return failure_record().state.load(std::memory_order_acquire) != FailureRecord::kNone;
}

absl::Status FingerprintBoard::failure() const {
  SYNCLINE_DCHECK(has_failed());
  const FailureRecord& record = failure_record();
  const Deadline deadline(kWriteTimeout);
  while (record.state.load(std::memory_order_acquire) != FailureRecord::kWritten) {
    if (deadline.Expired()) {
      return BackendError("a rank died while it wrote why the group has failed");
    }
    sched_yield();
  }
  // Of another process, which may be broken. What is parsed is a copy.
  const bool is_kind = record.kind <= static_cast<uint32_t>(ErrorKind::kInternal);
  const size_t size = std::min<size_t>(record.size, kTextBytes);
  const size_t origin_size = std::min<size_t>(record.origin_size, kTextBytes - size);
  const std::string text(record.text, size + origin_size);
  absl::Status cause =
      ErrorOfKind(is_kind ? static_cast<ErrorKind>(record.kind) : ErrorKind::kBackend,
                  absl::string_view(text).substr(0, size));
  absl::optional<ErrorOrigin> origin =
      base::ParseOriginInGroup(absl::string_view(text).substr(size), size_);
  return origin.has_value() ? WithOrigin(std::move(cause), *std::move(origin)) : cause;
}

int FingerprintBoard::reporter() const {
  const auto reporter = static_cast<int>(failure_record().reporter);
  return reporter >= 0 && reporter < size_ ? reporter : rank_;
}

void FingerprintBoard::Request(const Channel& channel, absl::Duration limit) {
  // The last word is for ever.
  const int64_t milliseconds = absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration()));
  const auto requested = static_cast<uint32_t>(std::min<int64_t>(milliseconds, kForever - 1) + 1);
  ring(channel, rank_).requested.store(requested, std::memory_order_release);
  WakeRank(OtherEnd(channel));
}

std::optional<absl::Duration> FingerprintBoard::Requested(const Channel& channel) const {
  const uint32_t requested =
      ring(channel, OtherEnd(channel)).requested.load(std::memory_order_acquire);
  if (requested == 0) return std::nullopt;
  return requested == kForever ? absl::InfiniteDuration() : absl::Milliseconds(requested - 1);
}

uint32_t FingerprintBoard::Epoch() const { return area(rank_).event.epoch.load(); }

void FingerprintBoard::Sleep(uint32_t epoch, absl::Duration limit) {
  base::EventCount& event = area(rank_).event;
  event.sleepers.fetch_add(1);
  base::SleepWhileEpochIs(event, epoch, limit);
  event.sleepers.fetch_sub(1);
}

void FingerprintBoard::Wake() { WakeRank(rank_); }

void FingerprintBoard::WakeRank(int rank) const {
  base::EventCount& event = area(rank).event;
  event.epoch.fetch_add(1);
  // A thread that comes to sleep after this finds that the epoch has changed.
  if (event.sleepers.load() > 0) base::WakeAll(event);
}

std::vector<Channel> FingerprintBoard::OwnChannels(int rank) const {
  std::vector<Channel> channels;
  for (int other = 0; other < size_; ++other) {
    if (other == rank) continue;
    channels.push_back({rank, other});
    channels.push_back({other, rank});
  }
  return channels;
}

namespace {

// What a line of changes is about. Each is this, a number of words, and the words.
enum ChangeKind : int64_t { kCallChange, kMessageChange, kStateChange, kRingChange, kLeftChange };

void Add(std::vector<int64_t>& changes, ChangeKind kind, absl::Span<const int64_t> words) {
  changes.push_back(kind);
  changes.push_back(static_cast<int64_t>(words.size()));
  changes.insert(changes.end(), words.begin(), words.end());
}

}  // namespace

std::string FingerprintBoard::TakeChanges() {
  std::vector<int64_t> changes;
  const RankArea& own = area(rank_);
  // What others may compare goes first: counters tell of calls that have been sent.
  // Before the calls are looked at: who hears that this rank has left has all its calls.
  const std::optional<std::string> leave_reason = LeaveReason(rank_);
  for (const uint64_t last = Published(rank_); taken_.published < last;) {
    const CallSlot& call = slot(rank_, ++taken_.published);
    std::vector<int64_t> words = {static_cast<int64_t>(taken_.published),
                                  call.even_split.load(std::memory_order_relaxed),
                                  call.use.load(std::memory_order_relaxed)};
    for (const auto& part :
         {Load(call.fingerprint, kFingerprintWords),
          Load(call.words, static_cast<size_t>(call.word_count.load(std::memory_order_relaxed)))}) {
      words.insert(words.end(), part.begin(), part.end());
    }
    Add(changes, kCallChange, words);
  }
  const std::vector<Channel> channels = OwnChannels(rank_);
  taken_.rings.resize(channels.size());
  for (size_t i = 0; i < channels.size(); ++i) {
    const Channel& channel = channels[i];
    const MessageRing& from = ring(channel, rank_);
    Taken::Ring& taken = taken_.rings[i];
    for (const uint64_t last = Published(channel, rank_); taken.published < last;) {
      ++taken.published;
      std::vector<int64_t> words = {channel.src, channel.dst,
                                    static_cast<int64_t>(taken.published)};
      const auto part = Load(from.fingerprints[taken.published % kMessages], kFingerprintWords);
      words.insert(words.end(), part.begin(), part.end());
      Add(changes, kMessageChange, words);
    }
    const uint64_t compared = from.compared.load();
    const uint32_t requested = from.requested.load();
    if (compared == taken.compared && requested == taken.requested) continue;
    taken.compared = compared;
    taken.requested = requested;
    Add(changes, kRingChange,
        {channel.src, channel.dst, static_cast<int64_t>(compared), requested});
  }
  std::vector<int64_t> state;
  for (const auto* counter :
       {&own.compared, &own.finished, &own.messages_published, &own.messages_finished,
        &own.message_what, &own.message_sequence, &own.last_what, &own.last_sequence}) {
    state.push_back(static_cast<int64_t>(counter->load()));
  }
  if (state != taken_.state) {
    Add(changes, kStateChange, state);
    taken_.state = std::move(state);
  }
  if (leave_reason.has_value() && !taken_.has_left) {
    std::vector<int64_t> words(sizeof(own.leave_reason) / sizeof(int64_t));
    std::memcpy(words.data(), leave_reason->data(), leave_reason->size());
    Add(changes, kLeftChange, words);
    taken_.has_left = true;
  }
  return std::string(reinterpret_cast<const char*>(changes.data()),
                     changes.size() * sizeof(int64_t));
}

absl::Status FingerprintBoard::ApplyChanges(int rank, absl::string_view changes) {
  const absl::Status damaged = WithRanks(
      BackendError(absl::StrCat(peers_.Describe(rank),
                                " has published calls that are not understood: do all ranks run "
                                "the same version of Syncline?")),
      {rank});
  std::vector<int64_t> all(changes.size() / sizeof(int64_t));
  if (all.empty()) return changes.empty() ? absl::OkStatus() : damaged;
  std::memcpy(all.data(), changes.data(), all.size() * sizeof(int64_t));
  absl::Span<const int64_t> rest = all;
  RankArea& theirs = area(rank);
  const auto channel_of = [&](absl::Span<const int64_t> words) {
    return Channel{static_cast<int>(words[0]), static_cast<int>(words[1])};
  };
  const auto is_channel = [&](absl::Span<const int64_t> words) {
    return words[0] >= 0 && words[0] < size_ && words[1] >= 0 && words[1] < size_ &&
           words[0] != words[1] && (words[0] == rank || words[1] == rank);
  };
  while (!rest.empty()) {
    if (rest.size() < 2 || rest[1] < 0 || static_cast<size_t>(rest[1]) > rest.size() - 2) {
      return damaged;
    }
    const int64_t kind = rest[0];
    absl::Span<const int64_t> words = rest.subspan(2, static_cast<size_t>(rest[1]));
    rest.remove_prefix(2 + words.size());
    if (kind == kCallChange && words.size() >= 3 + kFingerprintWords &&
        words.size() <= 3 + kFingerprintWords + CallDescription::MaxWords(size_)) {
      CallSlot& call = slot(rank, static_cast<uint64_t>(words[0]));
      call.even_split.store(words[1], std::memory_order_relaxed);
      call.use.store(words[2], std::memory_order_relaxed);
      Store(call.fingerprint, words.subspan(3, kFingerprintWords));
      const auto description = words.subspan(3 + kFingerprintWords);
      Store(call.words, description);
      call.word_count.store(static_cast<int64_t>(description.size()), std::memory_order_relaxed);
      theirs.published.store(static_cast<uint64_t>(words[0]), std::memory_order_release);
    } else if (kind == kMessageChange && words.size() == 3 + kFingerprintWords &&
               is_channel(words)) {
      MessageRing& to = ring(channel_of(words), rank);
      const auto number = static_cast<uint64_t>(words[2]);
      Store(to.fingerprints[number % kMessages], words.subspan(3));
      to.published.store(number, std::memory_order_release);
    } else if (kind == kRingChange && words.size() == 4 && is_channel(words)) {
      MessageRing& to = ring(channel_of(words), rank);
      to.compared.store(static_cast<uint64_t>(words[2]), std::memory_order_release);
      to.requested.store(static_cast<uint32_t>(words[3]), std::memory_order_release);
    } else if (kind == kStateChange && words.size() == 8) {
      const auto at = [&](size_t i) { return static_cast<uint64_t>(words[i]); };
      theirs.finished.store(at(1));
      theirs.messages_published.store(at(2));
      theirs.messages_finished.store(at(3));
      theirs.message_what.store(at(4));
      theirs.message_sequence.store(at(5));
      theirs.last_what.store(at(6));
      theirs.last_sequence.store(at(7));
      theirs.compared.store(at(0), std::memory_order_release);
    } else if (kind == kLeftChange &&
               words.size() == sizeof(theirs.leave_reason) / sizeof(int64_t)) {
      std::memcpy(theirs.leave_reason, words.data(), sizeof(theirs.leave_reason));
      theirs.left.store(1, std::memory_order_release);
    } else {
      return damaged;
    }
  }
  WakeRank(rank_);
  return absl::OkStatus();
}

}  // namespace syncline::nccl
