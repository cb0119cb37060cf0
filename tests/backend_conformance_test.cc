// The backends that must pass the suite. To add one, add a case.
#include "tests/backend_conformance.h"

#include <algorithm>

namespace syncline {
namespace {

std::vector<BackendCase> Cases() {
  return {
      {"gloo", BackendCase::Mismatches::kUndefined},
      {"local"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BackendConformance,
                         testing::Combine(testing::ValuesIn(Cases()), testing::Values(1, 2, 3, 7)),
                         &CaseName);

TEST(BackendRegistryTest, EveryRegisteredBackendIsACaseOfTheSuite) {
  std::vector<std::string> covered;
  for (const BackendCase& backend : Cases()) covered.push_back(backend.name);
  std::sort(covered.begin(), covered.end());
  EXPECT_EQ(covered, BackendRegistry::Names());
}

}  // namespace
}  // namespace syncline
