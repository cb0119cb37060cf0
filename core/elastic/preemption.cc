#include "syncline/preemption.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rank_ranges.h"
#include "core/base/thread.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// How long a wait may overlook that the object is being destroyed.
constexpr absl::Duration kSlice = absl::Milliseconds(100);
// The least interval of polls, for each rank.
constexpr absl::Duration kPollIntervalPerRank = absl::Milliseconds(1);

std::vector<std::string> KeysOfAll(absl::string_view prefix, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(absl::StrCat(prefix, rank));
  return keys;
}

// Key prefixes: the last step that a rank has reached; set by a rank that knows the agreed step.
constexpr absl::string_view kSteps = "preempt/step/";
constexpr absl::string_view kKnown = "preempt/known/";

}  // namespace

absl::StatusOr<std::shared_ptr<Preemption>> Preemption::Create(std::shared_ptr<Store> store,
                                                               int rank, int size,
                                                               const Options& options) {
  if (store == nullptr) return ArgumentError("preemption needs a store");
  if (rank < 0 || rank >= size) {
    return ArgumentError(absl::StrCat("rank ", rank, " is not in a world of ", size,
                                      ": ranks go from 0 to world_size - 1"));
  }
  if (options.timeout <= absl::ZeroDuration() || options.interval <= absl::ZeroDuration()) {
    return ArgumentError("the times of a preemption must be positive");
  }
  std::shared_ptr<Preemption> made(new Preemption(std::move(store), rank, size, options));
  SYNCLINE_ASSIGN_OR_RETURN(
      made->watcher_,
      base::StartThread("the watch for preemption", [raw = made.get()] { raw->Watch(); }));
  return made;
}

Preemption::Preemption(std::shared_ptr<Store> store, int rank, int size, const Options& options)
    : store_(std::move(store)), rank_(rank), size_(size), options_(options) {}

Preemption::~Preemption() {
  if (fork_.InChild()) {
    if (watcher_.joinable()) watcher_.detach();  // The thread is the parent's.
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  if (watcher_.joinable()) watcher_.join();
}

void Preemption::GiveNotice() {
  if (fork_.InChild()) return;
  absl::MutexLock lock(&mutex_);
  gives_notice_ = true;
}

absl::StatusOr<bool> Preemption::Reached(int64_t step) {
  if (fork_.InChild()) {
    return BackendError("preemption: this process was forked from the one that watches");
  }
  absl::MutexLock lock(&mutex_);
  if (step < 0 || step < last_) {
    return ArgumentError(absl::StrCat("steps count up from 0: got ", step, " after ",
                                      last_ < 0 ? "none" : absl::StrCat(last_)));
  }
  // Once this rank's step is published, it may not begin a later one before the agreement is known.
  // The watcher's waits all end, so it settles in time.
  if (is_published_ && !Deadline(absl::InfiniteDuration())
                            .AwaitInterruptibly(mutex_, absl::Condition(&is_settled_))) {
    return Interruption();
  }
  SYNCLINE_RETURN_IF_ERROR(error_);
  last_ = step;
  const int64_t agreed = agreed_step();
  return agreed >= 0 && step >= agreed;
}

void Preemption::Watch() {
  if (!AwaitNotice()) return;
  // No lock is held while the store is asked: Reached must not wait for it without need.
  absl::StatusOr<int64_t> agreed = AgreeOnStep();
  absl::MutexLock lock(&mutex_);
  if (agreed.ok()) {
    // Pairs with the load in agreed_step(), which callers make without the mutex.
    agreed_.store(*agreed, std::memory_order_release);
  } else {
    error_ = Annotate(agreed.status(), absl::StrCat("preemption, rank ", rank_));
  }
  is_settled_ = true;
}

bool Preemption::AwaitNotice() {
  const std::string keys[] = {std::string(kNoticeKey)};
  const absl::Duration interval = std::max(options_.interval, size_ * kPollIntervalPerRank);
  while (true) {
    bool gives_notice = false;
    {
      absl::MutexLock lock(&mutex_);
      if (is_ending_) return false;
      gives_notice = gives_notice_;
    }
    // Without a notice a store that cannot be reached is ignored: training may go on without it.
    const absl::Status noticed = gives_notice ? store_->Set(keys[0], absl::StrCat("rank ", rank_))
                                              : store_->Wait(keys, absl::ZeroDuration());
    if (noticed.ok()) return true;
    if (gives_notice) {
      Log(LogLevel::kWarning, absl::StrCat("rank ", rank_, " cannot tell the others to stop: ",
                                           noticed.message(), "; it will try again"));
    }
    absl::MutexLock lock(&mutex_);
    const auto is_woken = [this, gives_notice]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_ending_ || (gives_notice_ && !gives_notice);
    };
    mutex_.AwaitWithTimeout(absl::Condition(&is_woken), interval);
  }
}

absl::StatusOr<int64_t> Preemption::AgreeOnStep() {
  int64_t last = 0;
  {
    absl::MutexLock lock(&mutex_);
    is_published_ = true;
    last = last_;
  }
  const Deadline deadline(options_.timeout);
  SYNCLINE_RETURN_IF_ERROR(store_->Set(absl::StrCat(kSteps, rank_), absl::StrCat(last)));
  const std::vector<std::string> keys = KeysOfAll(kSteps, size_);
  SYNCLINE_RETURN_IF_ERROR(WaitForAll(keys, deadline));
  SYNCLINE_ASSIGN_OR_RETURN(const auto texts,
                            store_->MultiGet(keys, std::max(deadline.Remaining(), kSlice)));
  for (const std::string& text : texts) {
    int64_t step = 0;
    // -1 is that of a rank that has begun none; one comes after each.
    if (!absl::SimpleAtoi(text, &step) || step < -1 ||
        step == std::numeric_limits<int64_t>::max()) {
      constexpr size_t kBytesShown = 40;
      return StoreError(absl::StrCat("'", absl::CHexEscape(text.substr(0, kBytesShown)),
                                     "' is not a step: do two jobs share a store?"));
    }
    last = std::max(last, step);
  }
  // The rank that hosts the store may leave as soon as it has saved, so it waits until all ranks
  // know the step. Ranks that do not report in time have died; the others stop all the same.
  if (store_->Set(absl::StrCat(kKnown, rank_), "").ok()) {
    WaitForAll(KeysOfAll(kKnown, size_), deadline).IgnoreError();
  }
  return last + 1;
}

absl::Status Preemption::WaitForAll(const std::vector<std::string>& keys,
                                    const Deadline& deadline) {
  while (true) {
    absl::Status status = store_->Wait(keys, std::min(deadline.Remaining(), kSlice));
    if (status.ok() || KindOf(status) != ErrorKind::kTimeout) return status;
    {
      absl::MutexLock lock(&mutex_);
      if (is_ending_) return status;
    }
    if (deadline.Expired()) return MissingRanksError(status);
  }
}

absl::Status Preemption::MissingRanksError(const absl::Status& timeout) {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const absl::Status said = store_->Wait({absl::StrCat(kSteps, rank)}, absl::ZeroDuration());
    if (said.ok()) continue;
    if (KindOf(said) != ErrorKind::kTimeout) return said;
    missing.push_back(rank);
  }
  if (missing.empty()) return timeout;
  const absl::Status silent = TimeoutError(
      absl::StrCat("the job is to stop, but rank ", base::RankRanges(missing), " of ", size_,
                   " has not said within ", absl::FormatDuration(options_.timeout),
                   " which step it has reached: it has died, or does not watch for preemption"));
  return WithRanks(silent, std::move(missing));
}

}  // namespace syncline
