// The backends on which groups must pass the suite. To add one, add its name.
#include "tests/groups/process_group_conformance.h"

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(All, GroupConformance,
                         testing::Combine(testing::Values("auto", "gloo", "local", "shm", "tcp"),
                                          testing::Values(1, 2, 3, 7)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace syncline
