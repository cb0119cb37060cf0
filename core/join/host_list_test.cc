#include "core/join/host_list.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::join {
namespace {

using testing::ElementsAre;

std::vector<std::string> Hosts(const std::string& list) {
  const absl::StatusOr<std::vector<std::string>> hosts = ExpandHostList(list);
  return hosts.ok() ? *hosts : std::vector<std::string>();
}

TEST(HostListTest, BracketsAreExpandedInOrder) {
  EXPECT_THAT(Hosts("a[01-03,7],b2"), ElementsAre("a01", "a02", "a03", "a7", "b2"));
  EXPECT_THAT(Hosts("n1"), ElementsAre("n1"));
  EXPECT_THAT(Hosts("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(Hosts("n[009-010].cluster,x"), ElementsAre("n009.cluster", "n010.cluster", "x"));
  EXPECT_THAT(Hosts("r[1-2]n[1-2]"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_EQ(Hosts("n[1-100000]").size(), 100000u);
}

TEST(HostListTest, MalformedListsAreRefused) {
  for (const char* bad : {"", ",", "a,", "a[", "a[1", "a[]", "a[x]", "a[3-1]", "a[1-]", "a[-1]",
                          "a[1-2-3]", "n[1-100001]", "n[0-99999]m[0-9]"}) {
    EXPECT_FALSE(ExpandHostList(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace syncline::join
