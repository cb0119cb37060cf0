// Joining after something went wrong, in one store: retries, worlds that broke, forked children.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/join/join_protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kShortly = absl::Milliseconds(300);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A backend that rank 1 cannot make.
const BackendRegistry::Registration kFailing(
    "failing", {Capabilities::All(),
                [](const BackendConfig& config) -> absl::StatusOr<std::shared_ptr<Backend>> {
                  if (config.rank == 1) return NetworkError("it fails");
                  return BackendRegistry::Make("local", config);
                }});

class AgainTest : public ::testing::Test {
 protected:
  WorldOptions At(int rank, int size, absl::Duration timeout = kTimeout) const {
    WorldOptions options;
    options.backend = "local";
    options.store = store_;
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    return options;
  }

  void ExpectAllJoin(int size) {
    for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(At(rank, size)));
           SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
           world->Close();
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  const std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

TEST_F(AgainTest, ARankThatGaveUpMayTryAgainAsOftenAsItLikes) {
  for (int size : {2, 3, 7}) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      absl::Status status = World::Init(At(0, size, kShortly)).status();
      EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
      EXPECT_THAT(Message(status), HasSubstr("did not join within 300ms"));
    }
    ExpectAllJoin(size);
  }
}

TEST_F(AgainTest, WhoComesLateMeetsTheOneThatTriesAgain) {
  EXPECT_FALSE(World::Init(At(0, 2, kShortly)).ok());
  for (const absl::Status& status : RunRanks(2, [&](int rank) {
         if (rank == 1) {
           absl::Status waits = store_->Wait({"size 2/generation/2/slot/1"}, kTimeout);
           if (!waits.ok()) return waits;
         }
         return World::Init(At(rank, 2)).status();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(AgainTest, AfterABrokenGroupAllMayJoinAgain) {
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(At(rank, 2)));
           std::vector<float> x(3 + rank);
           if (world->group()->AllReduce(Tensor::Of(x)).ok()) return absl::InternalError("ok?");
           world->Close();
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  ExpectAllJoin(2);
}

TEST_F(AgainTest, AfterAConnectionThatFailedAllMayJoinAgain) {
  // They meet in the store, and one cannot make its backend.
  for (const absl::Status& status : RunRanks(2, [&](int rank) {
         WorldOptions options = At(rank, 2, absl::Seconds(1));
         options.backend = "failing";
         return World::Init(options).status();
       })) {
    EXPECT_FALSE(status.ok());
  }
  ExpectAllJoin(2);
}

TEST_F(AgainTest, RanksMaySpellOneBackendInDifferentWays) {
  const std::vector<std::string> spellings = {"local", "cpu:local,cuda:local",
                                              " CUDA: Local,cpu:local"};
  for (const absl::Status& status : RunRanks(3, [&](int rank) -> absl::Status {
         WorldOptions options = At(rank, 3);
         options.backend = spellings[rank];
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
         SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
         world->Close();
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(AgainTest, AfterDifferentBackendsAllMayJoinAgain) {
  for (const absl::Status& status : RunRanks(3, [&](int rank) {
         WorldOptions options = At(rank, 3, absl::Minutes(10));
         if (rank == 2) options.backend = "gloo";
         return World::Init(options).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(RanksOf(status), testing::ElementsAre(0, 2));
  }
  ExpectAllJoin(3);
}

TEST_F(AgainTest, TheSizeMayChangeAfterAWorldThatFailed) {
  EXPECT_FALSE(World::Init(At(1, 3, kShortly)).ok());
  ExpectAllJoin(2);
  ExpectAllJoin(3);
}

TEST_F(AgainTest, WhoIsRefusedInACrowdTakesNobodysPlace) {
  // Twelve come to worlds of three, and those who are refused come again, until each has been in
  // one.
  constexpr int kProcesses = 12;
  std::atomic<int> refused{0};
  for (const absl::Status& status : RunRanks(kProcesses, [&](int) -> absl::Status {
         const Deadline deadline(kTimeout);
         join::JoinProtocol::Request request;
         request.size = 3;
         while (true) {
           auto member = join::JoinProtocol::Join(store_, request, deadline);
           if (member.ok()) {
             // Nobody leaves before all three know that they have met.
             SYNCLINE_RETURN_IF_ERROR(
                 member->store()->Set(absl::StrCat("seen/", member->rank()), ""));
             SYNCLINE_RETURN_IF_ERROR(
                 member->store()->Wait({"seen/0", "seen/1", "seen/2"}, kTimeout));
             return member->Leave(deadline);
           }
           if (KindOf(member.status()) != ErrorKind::kArgument) return member.status();
           ++refused;
           std::this_thread::yield();
         }
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_GT(refused, 0);
}

// What a child of fork does to a world; it ends by a signal if that takes long.
void ExpectAChildIsHarmless(std::shared_ptr<World>& world) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool refused = KindOf(world->NewGroup({0}).status()) == ErrorKind::kBackend &&
                         KindOf(world->NewLocalGroup({0}).status()) == ErrorKind::kBackend;
    world->Close();
    world->Close(absl::ZeroDuration());
    world = nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(AgainTest, AForkedChildClosesNothingAndWaitsForNoLock) {
  auto world = World::Init(At(0, 1)).value();
  // Holds the world's, the group's and the store's locks most of the time.
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<float> x(1);
      while (!over) {
        EXPECT_TRUE(world->NewLocalGroup({0}).ok());
        EXPECT_TRUE(world->group()->AllReduce(Tensor::Of(x)).ok());
      }
    });
  }
  for (int i = 0; i < 30; ++i) ExpectAChildIsHarmless(world);
  over = true;
  for (std::thread& thread : threads) thread.join();
  // The parent is still there.
  EXPECT_THAT(Message(World::Init(At(0, 1)).status()), HasSubstr("rank 0 is taken"));
  world->Close();
  ExpectAllJoin(1);
}

TEST(ForkTest, AForkedChildLeavesTheConnectionToTheStoreAlone) {
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  std::shared_ptr<Store> store = TCPStore::Create(options).value();
  WorldOptions at;
  at.backend = "local";
  at.store = store;
  at.rank = 0;
  at.size = 1;
  auto world = World::Init(at).value();
  const auto keys = store->Keys("").value();
  ExpectAChildIsHarmless(world);
  EXPECT_EQ(store->Keys("").value(), keys);
  EXPECT_TRUE(world->group()->Barrier().ok());
  world->Close();
  EXPECT_NE(store->Keys("").value(), keys);
}

}  // namespace
}  // namespace syncline
