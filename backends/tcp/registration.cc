// Backend tcp, by its name: each rank as if it were alone on its host.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/common/giving_up.h"
#include "backends/common/peer_table.h"
#include "backends/common/renamed_backend.h"
#include "backends/hierarchical/hierarchical_backend.h"
#include "backends/hierarchical/topology.h"
#include "backends/tcp/tcp_backend.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

// The algorithms between hosts are those of backend hierarchical, which compare the calls in the
// packets that carry the data.
absl::StatusOr<std::shared_ptr<Backend>> MakeWithPeers(const BackendConfig& config,
                                                       const backends::PeerTable& peers) {
  std::vector<std::string> identities;
  for (int rank = 0; rank < config.size; ++rank) identities.push_back(absl::StrCat(rank));
  const hierarchical::Topology topology(identities, config.rank);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend,
                            hierarchical::HierarchicalBackend::Make(config, peers, topology));
  if (backend == nullptr) return TcpBackend::Make(config);
  return std::make_shared<backends::RenamedBackend>("tcp", std::move(backend));
}

absl::StatusOr<std::shared_ptr<Backend>> MakeTcp(const BackendConfig& config) {
  if (config.size == 1) return TcpBackend::Make(config);
  return backends::MakeAfterMeeting("ranks", config, &MakeWithPeers);
}

const BackendRegistry::Registration kTcp("tcp", {Capabilities::AllThroughHost(), &MakeTcp});

}  // namespace
}  // namespace syncline::tcp
