// Processes are threads here, and MPI is played by a board that they share.
#include "core/join/mpi_store.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/host.h"
#include "core/join/mpi_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// One job: what its processes send, and what is changed on the way.
struct Board {
  absl::Mutex mutex;
  std::map<int, std::string> parts;
  std::map<int, std::string> replaced;  // Parts that others see, by rank.
  std::string announced;
  int size = 0;
  int arrived = 0;
};
Board* board = nullptr;
thread_local int this_rank = 0;

class FakeProcesses final : public MpiProcesses {
 public:
  int rank() const override { return this_rank; }
  int size() const override { return board->size; }
  std::string library() const override { return "a fake"; }

  absl::StatusOr<std::string> Allgather(absl::string_view part, const Deadline&) override {
    absl::MutexLock lock(&board->mutex);
    board->parts[this_rank] = std::string(part);
    Meet(board->size);
    std::string all;
    for (const auto& [rank, text] : board->parts) {
      std::string seen = board->replaced.count(rank) == 0 ? text : board->replaced[rank];
      seen.resize(part.size());
      all += seen;
    }
    return all;
  }

  absl::Status Bcast(std::string& data, const Deadline&) override {
    absl::MutexLock lock(&board->mutex);
    if (this_rank == 0) board->announced = data;
    Meet(2 * board->size);
    data = board->announced;
    return absl::OkStatus();
  }

 private:
  static void Meet(int count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(board->mutex) {
    ++board->arrived;
    const auto all_are_here = [count] { return board->arrived >= count; };
    board->mutex.Await(absl::Condition(&all_are_here));
  }
};

const MpiProcessesRegistry::Registration kFake("mpi", [](const std::optional<MpiComm>&,
                                                         const Deadline&) {
  return std::shared_ptr<MpiProcesses>(new FakeProcesses);
});

class MpiStoreTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("SYNCLINE_HOST_ADDRESS"); }

  // Calls OpenMpiStore on each of `size` processes; `board_` says what else.
  std::vector<absl::StatusOr<OpenedStore>> Open(int size) {
    board_.size = size;
    board = &board_;
    std::vector<absl::StatusOr<OpenedStore>> opened(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) meetings_[rank];
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, rank, &opened] {
        this_rank = rank;
        opened[rank] =
            OpenMpiStore(meetings_[rank], absl::Seconds(20), Deadline(absl::Seconds(20)));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return opened;
  }

  // A process of another host, as the others see it.
  static std::string Elsewhere() {
    Peer peer = *base::IdentifyThisProcess();
    peer.identity = "another";
    peer.host = "another.invalid";
    return absl::StrCat("none ", peer.Serialize());  // Without a secret.
  }

  Board board_;
  std::map<int, MpiMeeting> meetings_;  // What each rank was told.
};

TEST_F(MpiStoreTest, OnOneHostTheRanksMeetAtLoopbackWithASecretOfTheirOwn) {
  const auto opened = Open(3);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(opened[rank].ok()) << opened[rank].status();
    EXPECT_EQ(opened[rank]->rank, rank);
    EXPECT_EQ(opened[rank]->size, 3);
    EXPECT_EQ(opened[rank]->host, "127.0.0.1");
    ASSERT_TRUE(opened[rank]->store->Set(absl::StrCat("rank", rank), "here").ok());
  }
  EXPECT_EQ(opened[2]->store->Get("rank1", absl::Seconds(5)).value_or(""), "here");
  EXPECT_EQ(opened[0]->role, StoreConfig::Role::kServer);
  EXPECT_EQ(opened[1]->role, StoreConfig::Role::kClient);
  // A stranger who finds the port is refused.
  const std::string address = opened[0]->store->address();
  StoreConfig stranger;
  stranger.host = "127.0.0.1";
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &stranger.port));
  stranger.timeout = absl::Seconds(5);
  EXPECT_FALSE(StoreRegistry::Make("tcp", stranger).ok());
}

TEST_F(MpiStoreTest, OneProcessNeedsNoSocket) {
  const auto opened = Open(1);
  ASSERT_TRUE(opened[0].ok()) << opened[0].status();
  EXPECT_EQ(opened[0]->host, "");
  EXPECT_EQ(opened[0]->size, 1);
}

TEST_F(MpiStoreTest, OnSeveralHostsTheAddressIsOneThatOthersReach) {
  board_.replaced[1] = Elsewhere();
  // Loopback cannot be told to others.
  setenv("SYNCLINE_HOST_ADDRESS", "127.0.0.1", 1);
  for (const auto& opened : Open(2)) {
    EXPECT_EQ(KindOf(opened.status()), ErrorKind::kNetwork) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("other hosts do not reach"));
  }
}

TEST_F(MpiStoreTest, WhereRank0CannotHostTheStoreAllSayWhy) {
  board_.replaced[1] = Elsewhere();
  setenv("SYNCLINE_HOST_ADDRESS", "192.0.2.77", 1);  // Nobody's.
  const auto opened = Open(2);
  EXPECT_THAT(std::string(opened[1].status().message()),
              AllOf(StartsWith("rank 0 cannot host the store: "), HasSubstr("192.0.2.77")));
  EXPECT_THAT(RanksOf(opened[1].status()), ElementsAre(0));
  EXPECT_THAT(std::string(opened[0].status().message()), HasSubstr("192.0.2.77"));
}

TEST_F(MpiStoreTest, DifferentSecretsAreAnErrorOnAllAtOnce) {
  board_.replaced[2] = absl::StrCat("4711 ", base::IdentifyThisProcess()->Serialize());
  for (const auto& opened : Open(3)) {
    EXPECT_EQ(KindOf(opened.status()), ErrorKind::kArgument) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("different secrets"));
    EXPECT_THAT(RanksOf(opened.status()), ElementsAre(0, 2));
  }
}

TEST_F(MpiStoreTest, ARankThatIsNotMpisIsAnErrorOnAllAtOnce) {
  meetings_[2].rank = 1;
  const auto opened = Open(3);
  EXPECT_THAT(std::string(opened[2].status().message()),
              HasSubstr("rank is 1, but MPI says 2: leave it to MPI"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(KindOf(opened[rank].status()), ErrorKind::kArgument);
    EXPECT_THAT(std::string(opened[rank].status().message()),
                AllOf(StartsWith("rank 2 of the MPI job cannot join: "), HasSubstr("MPI says 2")));
    EXPECT_THAT(RanksOf(opened[rank].status()), ElementsAre(2));
  }
}

TEST_F(MpiStoreTest, AProcessThatDoesNotSayWhatItIsIsNamedByAll) {
  board_.replaced[1] = "";
  for (const auto& opened : Open(3)) {
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("rank 1 of the MPI job"));
    EXPECT_THAT(RanksOf(opened.status()), ElementsAre(1));
  }
}

}  // namespace
}  // namespace syncline::join
