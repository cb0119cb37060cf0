#include "backends/nccl/fingerprint_store.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "backends/nccl/failure_text.h"
#include "core/base/thread.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

constexpr absl::string_view kFailureKey = "failure";

// How often the store is asked: soon after something has come, seldom when nothing does.
constexpr absl::Duration kShortestPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

std::string KeyOf(int rank, uint64_t batch) { return absl::StrCat("calls/", rank, "/", batch); }
std::string ReadKeyOf(int rank, uint64_t batch) {
  return absl::StrCat("calls read/", rank, "/", batch);
}

}  // namespace

class FingerprintStore::Exchange {
 public:
  Exchange(std::shared_ptr<Store> store, std::shared_ptr<NcclGroup> group)
      : store_(std::move(store)),
        group_(std::move(group)),
        disconnects_(store_, group_->peers(), -1),
        next_(static_cast<size_t>(group_->size())) {}

  void Loop() {
    absl::Duration pause = kShortestPause;
    while (true) {
      const bool is_last = IsStopped();
      const bool has_news = Round();
      if (is_last) break;
      pause = has_news ? kShortestPause : std::min(pause * 1.5, kLongestPause);
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&is_stopped_), pause);
    }
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
  }

  // Whether the thread has ended by then.
  bool Stop(absl::Duration limit) {
    absl::MutexLock lock(&mutex_);
    is_stopped_ = true;
    return Deadline(limit).Await(mutex_, absl::Condition(&has_ended_));
  }

 private:
  bool IsStopped() {
    absl::MutexLock lock(&mutex_);
    return is_stopped_;
  }

  // Whether there was something to send or to read. An error of the store is no failure of the
  // group: what ranks wait for then does not come, and their deadlines tell.
  bool Round() {
    bool has_news = Send();
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank != group_->rank()) has_news |= Receive(rank);
    }
    ExchangeFailure();
    const auto matters = [&](int rank) { return !group_->board().LeaveReason(rank).has_value(); };
    absl::Status lost = disconnects_.Check(matters);
    if (!lost.ok()) {
      // What they have sent last, before their end, may say that they were done.
      for (int rank = 0; rank < group_->size(); ++rank) {
        while (rank != group_->rank() && !IsStopped() && Receive(rank)) continue;
      }
      lost = disconnects_.Check(matters);
    }
    if (!lost.ok()) group_->SetLost(lost);
    return has_news;
  }

  bool Send() {
    if (unsent_.empty()) unsent_ = group_->board().TakeChanges();
    if (unsent_.empty()) return false;
    if (store_->Set(KeyOf(group_->rank(), sent_), unsent_).ok()) {
      unsent_.clear();
      ++sent_;
    }
    return true;
  }

  bool Receive(int rank) {
    uint64_t& batch = next_[static_cast<size_t>(rank)];
    const std::string key = KeyOf(rank, batch);
    const absl::StatusOr<bool> is_there = store_->Check({key});
    if (!is_there.ok() || !*is_there) return false;
    const absl::StatusOr<std::string> changes = store_->Get(key, kStoreProbeTimeout);
    if (!changes.ok()) return false;
    const absl::Status applied = group_->board().ApplyChanges(rank, *changes);
    if (!applied.ok()) group_->Fail(applied).IgnoreError();
    // Whoever reads a batch last removes it.
    const std::string read_key = ReadKeyOf(rank, batch);
    const absl::StatusOr<int64_t> readers = store_->Add(read_key, 1);
    if (readers.ok() && *readers == group_->size() - 1) {
      store_->Delete(key).status().IgnoreError();
      store_->Delete(read_key).status().IgnoreError();
    }
    ++batch;
    return true;
  }

  void ExchangeFailure() {
    if (has_exchanged_failure_) return;
    FingerprintBoard& board = group_->board();
    if (board.has_failed()) {
      const std::string text = SerializeFailure({board.reporter(), board.failure()});
      has_exchanged_failure_ = store_->CompareSet(kFailureKey, "", text).ok();
      return;
    }
    const absl::StatusOr<bool> is_there = store_->Check({std::string(kFailureKey)});
    if (!is_there.ok() || !*is_there) return;
    const absl::StatusOr<std::string> text = store_->Get(kFailureKey, kStoreProbeTimeout);
    if (!text.ok()) return;
    const ReportedFailure failure = ParseFailure(*text, group_->size());
    board.FailFor(failure.reporter, failure.cause);
    has_exchanged_failure_ = true;
  }

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<NcclGroup> group_;
  backends::DisconnectWatch disconnects_;
  std::vector<uint64_t> next_;  // The batch of each rank that is to be read next.
  uint64_t sent_ = 0;
  std::string unsent_;
  bool has_exchanged_failure_ = false;

  absl::Mutex mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

FingerprintStore::FingerprintStore(std::shared_ptr<Store> store, std::shared_ptr<NcclGroup> group)
    : exchange_(std::make_shared<Exchange>(std::move(store), std::move(group))) {}

absl::Status FingerprintStore::Start() {
  SYNCLINE_ASSIGN_OR_RETURN(
      thread_,
      base::StartThread("calls of other hosts", [exchange = exchange_] { exchange->Loop(); }));
  return absl::OkStatus();
}

FingerprintStore::~FingerprintStore() {
  if (!thread_.joinable()) return;
  if (exchange_->Stop(kLastWords)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace syncline::nccl
