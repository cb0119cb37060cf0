// What only backend local does; the rest is in tests/backend_conformance.cc.
#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/backend.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/hash_store.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Join(std::shared_ptr<Store> store, int rank, int size,
                  absl::Duration timeout = absl::Seconds(30)) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.deadline = Deadline(timeout);
  return BackendRegistry::Make("local", config).status();
}

TEST(LocalBackendTest, ARankInAnotherProcessIsRefused) {
  auto store = std::make_shared<HashStore>();
  const int other = getppid();
  ASSERT_TRUE(store->Set("hub", absl::StrCat(other, "/1")).ok());
  const absl::Status status = Join(store, 1, 2);
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("rank 1 is in process ", getpid())),
                    HasSubstr(absl::StrCat("rank 0 is in process ", other)), HasSubstr("gloo")));
}

TEST(LocalBackendTest, RankZeroIsNamedIfItNeverComes) {
  const absl::Status status = Join(std::make_shared<HashStore>(), 1, 2, absl::Milliseconds(50));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 of 2 has not joined"));
}

TEST(LocalBackendTest, RanksMustAgreeOnTheSizeOfTheGroup) {
  auto store = std::make_shared<HashStore>();
  std::thread rank_0([&] { Join(store, 0, 2, absl::Milliseconds(500)).IgnoreError(); });
  const absl::Status status = Join(store, 1, 3);
  rank_0.join();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("a group of 3 ranks"), HasSubstr("rank 0 made one of 2")));
}

}  // namespace
}  // namespace syncline
