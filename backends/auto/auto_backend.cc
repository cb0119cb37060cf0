// Backend auto, the default: chooses the backend that suits where the ranks of a group are.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/common/giving_up.h"
#include "backends/common/peer_table.h"
#include "backends/common/renamed_backend.h"
#include "backends/common/shm_availability.h"
#include "backends/hierarchical/hierarchical_backend.h"
#include "backends/hierarchical/topology.h"
#include "backends/tcp/tcp_backend.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::auto_backend {
namespace {

// Backend shm for the whole group, whose ranks are all on one host. Null on all ranks if they
// cannot share memory.
absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config) {
  BackendConfig bounded = config;
  bounded.store = std::make_shared<PrefixStore>("all", config.store);
  bounded.deadline = backends::ShmJoinDeadline(config.deadline);
  auto shm = BackendRegistry::Make("shm", bounded);
  // Ranks with different settings, which all of them see: no reason to do without shared memory.
  if (KindOf(shm.status()) == ErrorKind::kMismatch) return shm.status();
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_available,
                            backends::ShmIsAvailable(config, shm.status(), config.check_peers));
  if (!is_available) return nullptr;
  return *std::move(shm);
}

absl::StatusOr<std::shared_ptr<Backend>> MakeTcp(const BackendConfig& config) {
  BackendConfig group = config;
  group.store = std::make_shared<PrefixStore>("plain tcp", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, tcp::TcpBackend::Make(group));
  return backend;
}

// All ranks make the same choice, because all see the same table and ShmIsAvailable answers alike.
absl::StatusOr<std::shared_ptr<Backend>> Choose(const BackendConfig& config,
                                                const backends::PeerTable& peers) {
  std::vector<std::string> identities;
  for (int rank = 0; rank < config.size; ++rank) identities.push_back(peers.host_identity(rank));
  const hierarchical::Topology topology(identities, config.rank);
  std::shared_ptr<Backend> chosen;
  if (topology.node_count() == 1) {
    SYNCLINE_ASSIGN_OR_RETURN(chosen, MakeShm(config));
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(chosen,
                              hierarchical::HierarchicalBackend::Make(config, peers, topology));
  }
  if (chosen != nullptr) return chosen;
  // Some host cannot share memory.
  return MakeTcp(config);
}

absl::StatusOr<std::shared_ptr<Backend>> MakeAuto(const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> chosen,
                            backends::MakeAfterMeeting("hosts", config, &Choose));
  return std::make_shared<backends::RenamedBackend>("auto", std::move(chosen));
}

const BackendRegistry::Registration kAuto("auto", {Capabilities::AllThroughHost(), &MakeAuto,
                                                   nullptr, "nccl"});

}  // namespace
}  // namespace syncline::auto_backend
