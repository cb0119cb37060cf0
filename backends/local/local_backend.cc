// Ranks as threads of one process.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/local/hub.h"
#include "core/base/status.h"
#include "core/group/backend.h"
#include "core/group/backend_registry.h"

namespace syncline {
namespace {

// The hubs of this process, by the number under which rank 0 publishes them.
class HubTable {
 public:
  static HubTable& Get() {
    static auto* const table = new HubTable;
    return *table;
  }

  int64_t Add(const std::shared_ptr<Hub>& hub) {
    absl::MutexLock lock(&mutex_);
    for (auto it = hubs_.begin(); it != hubs_.end();) {
      it = it->second.expired() ? hubs_.erase(it) : std::next(it);
    }
    hubs_[++last_] = hub;
    return last_;
  }

  std::shared_ptr<Hub> Find(int64_t number) {
    absl::MutexLock lock(&mutex_);
    auto it = hubs_.find(number);
    return it == hubs_.end() ? nullptr : it->second.lock();
  }

 private:
  absl::Mutex mutex_;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::weak_ptr<Hub>> hubs_ ABSL_GUARDED_BY(mutex_);
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  ~LocalBackend() override { hub_->Leave(rank_, BackendError("its backend was destroyed")); }

  absl::string_view name() const override { return "local"; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return Meet({Call::Broadcast(tensor, root, context), tensor}, context);
  }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return Meet({Call::AllReduce(tensor, op, context), tensor}, context);
  }

  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override {
    return Meet({Call::Reduce(tensor, op, root, context), tensor}, context);
  }

  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    return Meet({Call::AllGather(outputs, input, context), input, outputs}, context);
  }

  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return Meet({Call::Gather(input, root, context), input, outputs}, context);
  }

  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return Meet({Call::Scatter(output, root, context), output, {}, inputs}, context);
  }

  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override {
    return Meet({Call::ReduceScatter(output, inputs, op, context), output, {}, inputs}, context);
  }

  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return Meet({Call::AllToAll(outputs, inputs, context), {}, outputs, inputs}, context);
  }

  absl::Status Barrier(const CallContext& context) override {
    return Meet({Call::Barrier(context)}, context);
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    const Part part = {Call::Send(tensor, dst, context), tensor};
    return hub_->Exchange(rank_, part, context.deadline).status();
  }

  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    const Part part = {Call::Recv(tensor, src, context), tensor};
    return hub_->Exchange(rank_, part, context.deadline);
  }

  void Abort(const absl::Status& cause) override { hub_->Leave(rank_, cause); }

 private:
  absl::Status Meet(const Part& part, const CallContext& context) {
    return hub_->Meet(rank_, part, context.deadline);
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

constexpr absl::string_view kHubKey = "hub";

absl::StatusOr<std::shared_ptr<Hub>> OpenHub(const BackendConfig& config) {
  auto hub = std::make_shared<Hub>(config.size);
  const std::string address = absl::StrCat(getpid(), "/", HubTable::Get().Add(hub));
  SYNCLINE_RETURN_IF_ERROR(config.store->Set(kHubKey, address));
  return hub;
}

absl::StatusOr<std::shared_ptr<Hub>> FindHub(const BackendConfig& config) {
  auto address = config.store->Get(kHubKey, config.deadline.Remaining());
  if (!address.ok()) {
    if (!config.deadline.Expired()) return address.status();
    return TimeoutError(absl::StrCat("rank 0 of ", config.size, " has not joined the group after ",
                                     absl::FormatDuration(config.deadline.timeout())));
  }
  const std::vector<std::string> parts = absl::StrSplit(*address, '/');
  int64_t pid, number;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number)) {
    return StoreError(absl::StrCat("key '", kHubKey, "' of ", config.store->ToString(), " is '",
                                   *address, "', which backend local did not write"));
  }
  if (pid != getpid()) {
    return BackendError(absl::StrCat("rank ", config.rank, " is in process ", getpid(),
                                     " but rank 0 is in process ", pid,
                                     ": backend local joins threads of one process only; use gloo "
                                     "between processes"));
  }
  std::shared_ptr<Hub> hub = HubTable::Get().Find(number);
  if (hub == nullptr) return BackendError("rank 0 has left the group before all ranks had joined");
  if (hub->size() != config.size) {
    return MismatchError(absl::StrCat("rank ", config.rank, " joins a group of ", config.size,
                                      " ranks, rank 0 made one of ", hub->size()));
  }
  return hub;
}

absl::StatusOr<std::shared_ptr<Backend>> MakeLocal(const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Hub> hub,
                            config.rank == 0 ? OpenHub(config) : FindHub(config));
  SYNCLINE_RETURN_IF_ERROR(hub->Join(config.rank, config.deadline));
  return std::make_shared<LocalBackend>(std::move(hub), config.rank);
}

const BackendRegistry::Registration kLocal("local", {Capabilities::All(), &MakeLocal});

}  // namespace
}  // namespace syncline
