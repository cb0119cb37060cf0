#include "core/testing/deferred_backend.h"

#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/testing/no_store.h"
#include "syncline/backend_registry.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr absl::Duration kDeadlinePollInterval = absl::Milliseconds(5);

thread_local std::shared_ptr<DeferredBackend> last_backend;

const BackendRegistry::Registration kDeferred("deferred",
                                              {Capabilities::All(), [](const BackendConfig&) {
                                                 last_backend = std::make_shared<DeferredBackend>();
                                                 return absl::StatusOr<std::shared_ptr<Backend>>(
                                                     last_backend);
                                               }});

}  // namespace

class DeferredBackend::Handle final : public Completion::Handle {
 public:
  using Callback = std::function<void(const absl::StatusOr<int>&)>;

  explicit Handle(const Deadline& deadline) : deadline_(deadline) {}

  absl::StatusOr<int> Wait(const Deadline& deadline) override {
    absl::MutexLock lock(&mutex_);
    auto has_ended = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outcome_.has_value(); };
    if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&has_ended))) return *outcome_;
    SYNCLINE_RETURN_IF_ERROR(Interruption());
    return TimeoutError("the wait is over");
  }

  bool IsDone() const override {
    absl::MutexLock lock(&mutex_);
    return outcome_.has_value();
  }

  void OnDone(Callback callback) override {
    std::optional<absl::StatusOr<int>> outcome;
    {
      absl::MutexLock lock(&mutex_);
      outcome = outcome_;
      if (!outcome.has_value()) callbacks_.push_back(std::move(callback));
    }
    if (outcome.has_value()) callback(*outcome);
  }

  void End(const absl::StatusOr<int>& outcome) {
    std::vector<Callback> callbacks;
    {
      absl::MutexLock lock(&mutex_);
      if (outcome_.has_value()) return;
      outcome_ = outcome;
      callbacks.swap(callbacks_);
    }
    for (const Callback& callback : callbacks) callback(outcome);
  }

  void EndIfExpired() {
    if (deadline_.Expired()) End(TimeoutError("not complete at its deadline"));
  }

 private:
  const Deadline deadline_;
  mutable absl::Mutex mutex_;
  std::optional<absl::StatusOr<int>> outcome_ ABSL_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};

std::shared_ptr<DeferredBackend> DeferredBackend::Last() { return last_backend; }

DeferredBackend::DeferredBackend() : watch_([this] { WatchDeadlines(); }) {}

DeferredBackend::~DeferredBackend() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  watch_.join();
}

absl::StatusOr<Completion> DeferredBackend::Run(absl::Span<const Collective> collectives,
                                                const CallContext& context) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(aborted_);
  auto handle = std::make_shared<Handle>(outlive_aborts_ ? Deadline(absl::InfiniteDuration())
                                                         : context.deadline);
  for (const Collective& collective : collectives) {
    calls_.push_back(absl::StrCat(Name(collective.kind), " #", context.sequence));
    handles_.push_back(handle);
  }
  return Completion(handle);
}

void DeferredBackend::Abort(const absl::Status& cause) {
  std::vector<std::shared_ptr<Handle>> handles;
  {
    absl::MutexLock lock(&mutex_);
    if (!aborted_.ok()) return;
    aborted_ = cause;
    if (outlive_aborts_) return;
    handles = handles_;
  }
  for (const auto& handle : handles) handle->End(cause);
}

void DeferredBackend::OutliveAborts() {
  absl::MutexLock lock(&mutex_);
  outlive_aborts_ = true;
}

void DeferredBackend::Finish(size_t index, const absl::StatusOr<int>& outcome) {
  std::shared_ptr<Handle> handle;
  {
    absl::MutexLock lock(&mutex_);
    handle = handles_.at(index);
  }
  handle->End(outcome);
}

std::vector<std::string> DeferredBackend::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

bool DeferredBackend::WaitForCalls(size_t count) const {
  absl::MutexLock lock(&mutex_);
  auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.size() >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kTimeout);
}

void DeferredBackend::WatchDeadlines() {
  std::vector<std::shared_ptr<Handle>> handles;
  do {
    for (const auto& handle : handles) handle->EndIfExpired();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&is_stopping_), kDeadlinePollInterval)) return;
    handles = handles_;
  } while (true);
}

std::shared_ptr<ProcessGroup> MakeDeferredGroup(int size) {
  ProcessGroup::Options options;
  options.backend = "deferred";
  options.store = std::make_shared<NoStore>();
  options.size = size;
  return ProcessGroup::Create(options).value();
}

}  // namespace syncline
