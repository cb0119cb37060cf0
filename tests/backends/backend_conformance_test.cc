// The backends that must pass the suite. To add one, add a case.
#include "tests/backends/backend_conformance.h"

#include <algorithm>
#include <set>

#include "syncline/backend_registry.h"

namespace syncline {
namespace {

std::vector<BackendCase> Cases() {
  return {
      {"auto"}, {"gloo"}, {"local"}, {"shm"}, {"tcp"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BackendConformance,
                         testing::Combine(testing::ValuesIn(Cases()), testing::Values(1, 2, 3, 7)),
                         &CaseName);
INSTANTIATE_TEST_SUITE_P(All, BackendData,
                         testing::Combine(testing::ValuesIn(Cases()), testing::Values(1, 2, 3, 7),
                                          testing::ValuesIn(DataCaseNames())),
                         &DataCaseName);

TEST(BackendRegistryTest, EveryRegisteredBackendIsACaseOfTheSuite) {
  // Ranks of mpi are processes that mpirun has started: tests/mpi/mpi_conformance.cc. Those of nccl
  // have devices: tests/backends/nccl_conformance_test.cc.
  std::vector<std::string> covered = {"mpi", "nccl"};
  for (const BackendCase& backend : Cases()) covered.push_back(backend.name);
  std::sort(covered.begin(), covered.end());
  EXPECT_EQ(covered, BackendRegistry::Names());
}

TEST(DataCasesTest, EveryOperationIsCovered) {
  std::set<OpKind> covered;
  for (const DataCase& data_case : DataCases()) {
    covered.insert(data_case.covers.begin(), data_case.covers.end());
  }
  EXPECT_EQ(covered, std::set<OpKind>(AllOpKinds().begin(), AllOpKinds().end()));
}

}  // namespace
}  // namespace syncline
