// The backend that suits where the ranks are: registered as "auto".
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/auto/hosts_backend.h"
#include "backends/auto/sharing.h"
#include "backends/auto/topology.h"
#include "backends/common/roster.h"
#include "core/base/status.h"
#include "core/group/backend.h"
#include "core/group/backend_registry.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

// Another backend, under this name.
class ChosenBackend final : public Backend {
 public:
  explicit ChosenBackend(std::shared_ptr<Backend> chosen) : chosen_(std::move(chosen)) {}

  absl::string_view name() const override { return "auto"; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return chosen_->Broadcast(tensor, root, context);
  }
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return chosen_->AllReduce(tensor, op, context);
  }
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override {
    return chosen_->Reduce(tensor, op, root, context);
  }
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    return chosen_->AllGather(outputs, input, context);
  }
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return chosen_->Gather(outputs, input, root, context);
  }
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return chosen_->Scatter(output, inputs, root, context);
  }
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override {
    return chosen_->ReduceScatter(output, inputs, op, context);
  }
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return chosen_->AllToAll(outputs, inputs, context);
  }
  absl::Status Barrier(const CallContext& context) override { return chosen_->Barrier(context); }
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return chosen_->Send(tensor, dst, context);
  }
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    return chosen_->Recv(tensor, src, context);
  }
  void Abort(const absl::Status& cause) override { chosen_->Abort(cause); }

 private:
  const std::shared_ptr<Backend> chosen_;
};

// Shared memory alone. Null on all ranks if they cannot share any.
absl::StatusOr<std::shared_ptr<Backend>> MakeShared(const BackendConfig& config,
                                                    const Roster& roster) {
  BackendConfig inside = config;
  inside.store = std::make_shared<PrefixStore>("all", config.store);
  inside.deadline = SharingDeadline(config.deadline);
  inside.check_peers = [&roster] { return roster.CheckAlive(); };
  auto shm = BackendRegistry::Make("shm", inside);
  SYNCLINE_ASSIGN_OR_RETURN(const bool share, AllShare(config, roster, shm.status()));
  if (!share) return nullptr;
  return std::make_shared<ChosenBackend>(*std::move(shm));
}

absl::StatusOr<std::shared_ptr<Backend>> MakeAuto(const BackendConfig& config) {
  PrefixStore hosts("hosts", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(const Roster roster, Roster::Join(hosts, config.rank, config.size, "",
                                                              config.deadline, config.check_peers));
  std::vector<std::string> identities;
  for (int rank = 0; rank < config.size; ++rank) identities.push_back(roster.host_identity(rank));
  const Topology topology(identities, config.rank);
  const bool is_one_each = topology.hosts.size() == identities.size() && identities.size() > 1;
  std::shared_ptr<Backend> backend;
  if (topology.hosts.size() == 1) {
    SYNCLINE_ASSIGN_OR_RETURN(backend, MakeShared(config, roster));
  } else if (!is_one_each) {
    SYNCLINE_ASSIGN_OR_RETURN(backend, HostsBackend::Make(config, roster, topology));
  }
  if (backend != nullptr) return backend;
  BackendConfig plain = config;
  plain.store = std::make_shared<PrefixStore>("plain", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(backend, BackendRegistry::Make("gloo", plain));
  return std::make_shared<ChosenBackend>(std::move(backend));
}

const BackendRegistry::Registration kAuto("auto", {Capabilities::All(), &MakeAuto});

}  // namespace
}  // namespace syncline
