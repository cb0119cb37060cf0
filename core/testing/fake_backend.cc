#include "core/testing/fake_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/group/backend_registry.h"

namespace syncline {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

thread_local FakeBackend::Behaviour next_behaviour;
thread_local std::shared_ptr<FakeBackend> last_backend;

// A store that is never asked: the fake backend has nobody to meet.
class NoStore final : public Store {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override { return Refused(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration) override { return Refused(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t) override { return Refused(); }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view, absl::string_view,
                                              absl::string_view) override {
    return Refused();
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration) override { return Refused(); }
  absl::StatusOr<bool> Check(absl::Span<const std::string>) override { return Refused(); }
  absl::StatusOr<bool> Delete(absl::string_view) override { return Refused(); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view) override { return Refused(); }
  absl::Status Append(absl::string_view, absl::string_view) override { return Refused(); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration) override {
    return Refused();
  }
  absl::Status MultiSet(absl::Span<const std::string>, absl::Span<const std::string>) override {
    return Refused();
  }
  absl::Duration timeout() const override { return kPatience; }
  std::string ToString() const override { return "none"; }

 private:
  static absl::Status Refused() { return StoreError("this test has no store"); }
};

Capabilities SomeCapabilities() {
  Capabilities some = Capabilities::All();
  some.move_dtypes = {DType::kFloat32, DType::kInt64, DType::kUInt8};
  some.reduce_dtypes = {DType::kFloat32, DType::kInt32};
  return some;
}

const BackendRegistry::Registration kFake(
    "fake", {SomeCapabilities(), [](const BackendConfig&) {
               last_backend = std::make_shared<FakeBackend>(next_behaviour);
               return absl::StatusOr<std::shared_ptr<Backend>>(last_backend);
             }});

}  // namespace

void FakeBackend::Next(Behaviour behaviour) { next_behaviour = std::move(behaviour); }
std::shared_ptr<FakeBackend> FakeBackend::Last() { return last_backend; }

absl::Status FakeBackend::Broadcast(const Tensor&, int, const CallContext& c) {
  return Call(OpKind::kBroadcast, c);
}
absl::Status FakeBackend::AllReduce(const Tensor&, ReduceOp, const CallContext& c) {
  return Call(OpKind::kAllReduce, c);
}
absl::Status FakeBackend::Reduce(const Tensor&, ReduceOp, int, const CallContext& c) {
  return Call(OpKind::kReduce, c);
}
absl::Status FakeBackend::AllGather(absl::Span<const Tensor>, const Tensor&, const CallContext& c) {
  return Call(OpKind::kAllGather, c);
}
absl::Status FakeBackend::Gather(absl::Span<const Tensor>, const Tensor&, int,
                                 const CallContext& c) {
  return Call(OpKind::kGather, c);
}
absl::Status FakeBackend::Scatter(const Tensor&, absl::Span<const Tensor>, int,
                                  const CallContext& c) {
  return Call(OpKind::kScatter, c);
}
absl::Status FakeBackend::ReduceScatter(const Tensor&, absl::Span<const Tensor>, ReduceOp,
                                        const CallContext& c) {
  return Call(OpKind::kReduceScatter, c);
}
absl::Status FakeBackend::AllToAll(absl::Span<const Tensor>, absl::Span<const Tensor>,
                                   const CallContext& c) {
  return Call(OpKind::kAllToAll, c);
}
absl::Status FakeBackend::Barrier(const CallContext& c) { return Call(OpKind::kBarrier, c); }
absl::Status FakeBackend::Send(const Tensor&, int, const CallContext& c) {
  return Call(OpKind::kSend, c);
}
absl::StatusOr<int> FakeBackend::Recv(const Tensor&, int src, const CallContext& c) {
  SYNCLINE_RETURN_IF_ERROR(Call(OpKind::kRecv, c));
  return src == kAnySource ? 1 : src;
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
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
}

absl::Status FakeBackend::WaitForAbort() const {
  absl::MutexLock lock(&mutex_);
  auto aborted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !aborted_.ok(); };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&aborted), kPatience)) {
    return absl::InternalError("Abort was never called");
  }
  return aborted_;
}

absl::Status FakeBackend::Call(OpKind kind, const CallContext& context) {
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(absl::StrCat(Name(kind), " #", context.sequence));
  }
  return behaviour_ ? behaviour_(*this, kind, context) : absl::OkStatus();
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
