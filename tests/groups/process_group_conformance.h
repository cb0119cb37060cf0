// What a ProcessGroup must do on every backend: what is above the backends' own suite. See
// process_group_conformance.cc for the fixture and the basic operations, and the files beside it.
#ifndef SYNCLINE_TESTS_GROUPS_PROCESS_GROUP_CONFORMANCE_H_
#define SYNCLINE_TESTS_GROUPS_PROCESS_GROUP_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "syncline/collective.h"
#include "syncline/process_group.h"
#include "tests/groups/group_ranks.h"

namespace syncline {

// The function of the group that `operation` describes.
absl::Status CallGroup(const Collective& operation, ProcessGroup& group);

// Each backend with each number of ranks.
class GroupConformance : public testing::TestWithParam<std::tuple<std::string, int>> {
 public:
  static const std::string& backend() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }

  // `body` must succeed on every rank.
  static void Run(const std::function<absl::Status(ProcessGroup& group)>& body);
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_GROUPS_PROCESS_GROUP_CONFORMANCE_H_
