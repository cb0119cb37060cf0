// Worlds whose ranks meet in an etcd cluster.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/etcd/etcd_testing.h"
#include "syncline/status.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using etcd_store::EtcdServer;

constexpr absl::Duration kTimeout = absl::Seconds(60);

void ExpectAllOk(const std::vector<absl::Status>& outcomes) {
  for (const absl::Status& status : outcomes) EXPECT_TRUE(status.ok()) << status;
}

// Joins, meets the others, and leaves.
absl::Status Join(const std::string& url, int rank, int size) {
  WorldOptions options;
  options.backend = "local";
  options.init_method = url;
  options.rank = rank;
  options.size = size;
  options.timeout = kTimeout;
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<World> world, World::Init(options));
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  world->Close();
  return absl::OkStatus();
}

TEST(EtcdJoiningTest, RanksThatAreGivenMeet) {
  const EtcdServer server;
  for (const int size : {1, 2, 3, 7}) {
    const std::string url = absl::StrCat("etcd://", server.endpoint(), "/job of ", size);
    ExpectAllOk(RunRanks(size, [&](int rank) { return Join(url, rank, size); }));
  }
}

TEST(EtcdJoiningTest, RanksThatAreNotGivenAreAssignedAndWorldsFollowOneAnother) {
  const EtcdServer server;
  const std::string url = absl::StrCat("etcd://", server.endpoint(), "/job");
  for (int world = 0; world < 3; ++world) {
    ExpectAllOk(RunRanks(3, [&](int) { return Join(url, -1, 3); }));
  }
}

TEST(EtcdJoiningTest, WhereNoEtcdIsThatIsSaidInTime) {
  WorldOptions options;
  options.init_method = "etcd://127.0.0.1:1/job";
  options.rank = 0;
  options.size = 1;
  options.timeout = absl::Milliseconds(300);
  const absl::Status status = World::Init(options).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("store etcd://127.0.0.1:1/job"));
}

}  // namespace
}  // namespace syncline
