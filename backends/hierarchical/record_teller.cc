#include "backends/hierarchical/record_teller.h"

#include <utility>

#include "core/base/thread.h"
#include "syncline/status.h"

namespace syncline::hierarchical {

absl::StatusOr<std::unique_ptr<RecordTeller>> RecordTeller::Start(std::function<bool()> tell) {
  std::unique_ptr<RecordTeller> teller(new RecordTeller());
  SYNCLINE_ASSIGN_OR_RETURN(
      teller->thread_,
      base::StartThread("the records of calls",
                        [teller = teller.get(), tell = std::move(tell)] { teller->Run(tell); }));
  return teller;
}

RecordTeller::~RecordTeller() {
  {
    absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void RecordTeller::ToldLater() {
  // Calls in a row wake the thread once.
  if (is_awaited_.load()) return;
  absl::MutexLock lock(&mutex_);
  is_awaited_.store(true);
}

void RecordTeller::Run(const std::function<bool()>& tell) {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_ending_ || is_awaited_.load();
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      mutex_.AwaitWithTimeout(absl::Condition(&is_ending_), kInterval);
      if (is_ending_) return;
      // Before `tell`: a call that finds it set has not ended by then, so `tell` returns false.
      is_awaited_.store(false);
    }
    if (!tell()) ToldLater();
  }
}

}  // namespace syncline::hierarchical
