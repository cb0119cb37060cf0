#include "core/testing/fake_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/testing/no_store.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

thread_local FakeBackend::Behaviour next_behaviour;
thread_local std::shared_ptr<FakeBackend> last_backend;

Capabilities SomeCapabilities() {
  Capabilities some = Capabilities::All();
  some.move_dtypes = {DType::kFloat32, DType::kInt64, DType::kUInt8};
  some.reduce_dtypes = {DType::kFloat32, DType::kInt32};
  return some;
}

const BackendRegistry::Registration kFake(
    "fake", {SomeCapabilities(), [](const BackendConfig& config) {
               last_backend = std::make_shared<FakeBackend>(next_behaviour, config.rank);
               return absl::StatusOr<std::shared_ptr<Backend>>(last_backend);
             }});

}  // namespace

void FakeBackend::Next(Behaviour behaviour) { next_behaviour = std::move(behaviour); }
std::shared_ptr<FakeBackend> FakeBackend::Last() { return last_backend; }

absl::StatusOr<int> FakeBackend::RunBlocking(const CallContext& context) {
  const Collective& collective = *context.collective;
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(absl::StrCat(Name(collective.kind), " #", context.sequence));
  }
  if (behaviour_) SYNCLINE_RETURN_IF_ERROR(behaviour_(*this, collective.kind, context));
  if (collective.kind != OpKind::kRecv) return 0;
  return collective.peer == kAnySource ? 1 : static_cast<int>(collective.peer);
}

void FakeBackend::Abort(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (aborted_.ok()) aborted_ = cause;
}

std::vector<std::string> FakeBackend::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

bool FakeBackend::WaitForCalls(size_t count) const {
  absl::MutexLock lock(&mutex_);
  auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.size() >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kTimeout);
}

absl::Status FakeBackend::WaitForAbort() const {
  absl::MutexLock lock(&mutex_);
  auto aborted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !aborted_.ok(); };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&aborted), kTimeout)) {
    return absl::InternalError("Abort was never called");
  }
  return aborted_;
}

std::shared_ptr<ProcessGroup> MakeFakeGroup(FakeBackend::Behaviour behaviour, int size) {
  FakeBackend::Next(std::move(behaviour));
  ProcessGroup::Options options;
  options.backend = "fake";
  options.store = std::make_shared<NoStore>();
  options.size = size;
  return ProcessGroup::Create(options).value();
}

}  // namespace syncline
