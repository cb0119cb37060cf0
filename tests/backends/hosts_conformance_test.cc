// Backends auto and tcp in the suite of all backends, with ranks that take each other for those of
// several hosts: auto is backend hierarchical there. The ranks are threads all the same, so that
// every case of the suite can look into all of them; auto_hosts_test.cc has processes in networks
// of their own.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/common/renamed_backend.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"
#include "tests/backends/backend_conformance.h"
#include "tests/support/backend_config.h"

namespace syncline {
namespace {

// So many hosts, whose ranks come in turns: the first two are on different ones.
BackendRegistry::Registration RegisterOnHosts(const std::string& backend, const std::string& name,
                                              int hosts = 2) {
  const auto make = [=](const BackendConfig& config) -> absl::StatusOr<std::shared_ptr<Backend>> {
    BackendConfig on_host = config;
    on_host.store =
        std::make_shared<StoreOnHost>(config.store, absl::StrCat("host_", config.rank % hosts));
    SYNCLINE_ASSIGN_OR_RETURN(auto made, BackendRegistry::Make(backend, on_host));
    return std::make_shared<backends::RenamedBackend>(name, std::move(made));
  };
  return BackendRegistry::Registration(name, {Capabilities::All(), make});
}

const auto kAuto = RegisterOnHosts("auto", "auto_on_hosts");
const auto kAutoOnFour = RegisterOnHosts("auto", "auto_on_four_hosts", 4);
const auto kTcp = RegisterOnHosts("tcp", "tcp_on_hosts");

// Of three ranks one is alone on its host, and one of the others on no rail; of five, too, one is
// on none.
INSTANTIATE_TEST_SUITE_P(Hosts, BackendConformance,
                         testing::Combine(testing::Values(BackendCase{"auto_on_hosts"},
                                                          BackendCase{"tcp_on_hosts"}),
                                          testing::Values(3, 4, 5)),
                         &CaseName);
// Leaders hear of each other through others, and data go along trees. One host has two ranks, or
// all but one have.
INSTANTIATE_TEST_SUITE_P(FourHosts, BackendConformance,
                         testing::Combine(testing::Values(BackendCase{"auto_on_four_hosts"}),
                                          testing::Values(5, 7)),
                         &CaseName);
INSTANTIATE_TEST_SUITE_P(FourHosts, BackendData,
                         testing::Combine(testing::Values(BackendCase{"auto_on_four_hosts"}),
                                          testing::Values(7), testing::ValuesIn(DataCaseNames())),
                         &DataCaseName);
INSTANTIATE_TEST_SUITE_P(Hosts, BackendData,
                         testing::Combine(testing::Values(BackendCase{"auto_on_hosts"}),
                                          testing::Values(4), testing::ValuesIn(DataCaseNames())),
                         &DataCaseName);

}  // namespace
}  // namespace syncline
