// The ways to join a world, with ranks as threads. Over loopback alone.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kShortly = absl::Seconds(2);

// An init method that nobody else uses, and what it leaves behind.
class TestInitMethod {
 public:
  explicit TestInitMethod(const std::string& kind) {
    static std::atomic<int> count{0};
    if (kind == "tcp") {
      url_ = absl::StrCat("tcp://localhost:", FreePort());
    } else if (kind == "multicast") {
      url_ = absl::StrCat("tcp://239.255.7.7:", FreePort(), "?group_name=", getpid(), "_", count++);
    } else {
      if (mkdtemp(folder_) == nullptr) std::abort();
      url_ = absl::StrCat("file://", path());
    }
  }
  ~TestInitMethod() {
    if (url_.rfind("file", 0) != 0) return;
    struct stat info;
    EXPECT_NE(stat(path().c_str(), &info), 0) << "the last to leave removes the file";
    EXPECT_EQ(rmdir(folder_), 0);
  }

  const std::string& url() const { return url_; }
  std::string path() const { return absl::StrCat(folder_, "/store"); }

 private:
  char folder_[40] = "/tmp/syncline_joining_XXXXXX";
  std::string url_;
};

WorldOptions Options(const TestInitMethod& method, int rank, int size) {
  WorldOptions options;
  options.backend = "local";
  options.init_method = method.url();
  options.rank = rank;
  options.size = size;
  options.timeout = kTimeout;
  return options;
}

// That each rank of `world` is there once. Nobody leaves before all have seen it.
absl::Status AllAreThere(World& world) {
  std::vector<std::vector<int64_t>> ranks(world.size(), std::vector<int64_t>(1, -1));
  std::vector<Tensor> outputs;
  for (std::vector<int64_t>& rank : ranks) outputs.push_back(Tensor::Of(rank));
  std::vector<int64_t> own = {world.rank()};
  SYNCLINE_RETURN_IF_ERROR(world.group()->AllGather(outputs, Tensor::Of(own)));
  for (int rank = 0; rank < world.size(); ++rank) {
    if (ranks[rank][0] != rank)
      return absl::InternalError(absl::StrCat("rank ", rank, " is absent"));
  }
  return world.group()->Barrier();
}

struct JoinCase {
  std::string kind;
  int size;
};

class JoinTest : public ::testing::TestWithParam<JoinCase> {
 protected:
  // Process i asks for rank given[i].
  void ExpectAllJoin(const std::vector<int>& given) {
    TestInitMethod method(GetParam().kind);
    const int size = static_cast<int>(given.size());
    for (const absl::Status& status : RunRanks(size, [&](int i) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Options(method, given[i], size)));
           if (given[i] >= 0 && world->rank() != given[i]) {
             return absl::InternalError("the rank that was given was not kept");
           }
           return AllAreThere(*world);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

std::vector<JoinCase> Cases() {
  std::vector<JoinCase> cases;
  for (const char* kind : {"tcp", "file", "multicast"}) {
    for (int size : {1, 2, 3, 7}) cases.push_back({kind, size});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Methods, JoinTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(info.param.kind, "_", info.param.size);
});

TEST_P(JoinTest, WithRanksThatAreGiven) {
  std::vector<int> given(GetParam().size);
  std::iota(given.rbegin(), given.rend(), 0);
  ExpectAllJoin(given);
}

TEST_P(JoinTest, WithRanksThatAreAssigned) { ExpectAllJoin(std::vector<int>(GetParam().size, -1)); }

TEST_P(JoinTest, WithSomeRanksGivenAndTheOthersAssigned) {
  std::vector<int> zero(GetParam().size, -1);
  zero.back() = 0;  // It may find that another, without a rank, already hosts the store.
  ExpectAllJoin(zero);
  std::vector<int> last(GetParam().size, -1);
  last.front() = GetParam().size - 1;
  ExpectAllJoin(last);
}

class MethodTest : public ::testing::TestWithParam<std::string> {
 protected:
  // How long to wait at most for an error: by multicast a conflict must last before it is one.
  static absl::Duration UntilRefused() { return absl::Seconds(GetParam() == "multicast" ? 20 : 3); }
};

INSTANTIATE_TEST_SUITE_P(Methods, MethodTest, ::testing::Values("tcp", "file", "multicast"),
                         [](const auto& info) { return info.param; });

TEST_P(MethodTest, TheUrlMayCarryEverything) {
  TestInitMethod method(GetParam());
  for (const absl::Status& status : RunRanks(2, [&](int) -> absl::Status {
         WorldOptions options = Options(method, -1, -1);
         const char* const joint = method.url().find('?') == std::string::npos ? "?" : "&";
         options.init_method += absl::StrCat(joint, "world_size=2");
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
         return AllAreThere(*world);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MethodTest, WithoutAWorldSizeThereIsNoWorld) {
  TestInitMethod method(GetParam());
  absl::Status status = World::Init(Options(method, 0, -1)).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
  EXPECT_THAT(Message(status), HasSubstr("needs world_size"));
}

TEST_P(MethodTest, TheFirstGetsRankZeroAndALateOneIsWaitedFor) {
  TestInitMethod method(GetParam());
  for (const absl::Status& status : RunRanks(3, [&](int i) -> absl::Status {
         if (i == 0) {  // The first, where the store tells who came.
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Options(method, -1, 3)));
           if (GetParam() != "multicast" && world->rank() != 0) {
             return absl::InternalError("the first is not rank 0");
           }
           return AllAreThere(*world);
         }
         if (GetParam() == "file") {
           SYNCLINE_ASSIGN_OR_RETURN(auto store, FileStore::Open(method.path()));
           SYNCLINE_RETURN_IF_ERROR(store->Wait({"size 3/generation/1/slot/1"}, kTimeout));
         } else if (GetParam() == "tcp") {
           TCPStore::Options options;
           options.host = "localhost";
           options.port = std::stoi(method.url().substr(method.url().rfind(':') + 1));
           SYNCLINE_ASSIGN_OR_RETURN(auto store, TCPStore::Create(options));
           SYNCLINE_RETURN_IF_ERROR(store->Wait({"size 3/generation/1/slot/1"}, kTimeout));
         }
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Options(method, -1, 3)));
         return AllAreThere(*world);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MethodTest, ThoseWhoAreMissingAreCounted) {
  TestInitMethod method(GetParam());
  for (const absl::Status& status : RunRanks(2, [&](int) -> absl::Status {
         WorldOptions options = Options(method, -1, 3);
         options.timeout = kShortly;
         return World::Init(options).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), AllOf(AnyOf(HasSubstr("1 of 3 processes did not join"),
                                             HasSubstr("only 2 of 3 processes")),
                                       HasSubstr(absl::StrCat("pid ", getpid()))));
    EXPECT_THAT(RanksOf(status), IsEmpty()) << status;
  }
}

TEST_P(MethodTest, ARankThatIsMissingIsNamed) {
  TestInitMethod method(GetParam());
  for (const absl::Status& status : RunRanks(2, [&](int i) -> absl::Status {
         WorldOptions options = Options(method, i, 3);
         options.timeout = kShortly;
         return World::Init(options).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status),
                AnyOf(HasSubstr("rank 2 of 3 did not join"), HasSubstr("missing: rank 2")));
    EXPECT_THAT(RanksOf(status), ElementsAre(2)) << status;
  }
}

TEST_P(MethodTest, ARankThatIsGivenTwiceIsRefused) {
  TestInitMethod method(GetParam());
  int refused = 0;
  for (const absl::Status& status : RunRanks(2, [&](int) -> absl::Status {
         WorldOptions options = Options(method, 1, 3);
         options.timeout = UntilRefused();
         return World::Init(options).status();
       })) {
    if (KindOf(status) != ErrorKind::kArgument) continue;
    ++refused;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1"), HasSubstr("is taken")));
  }
  // Where the store decides who came first, the first only waits in vain. With tcp there is no
  // store, as rank 0 has not come.
  EXPECT_EQ(refused, GetParam() == "tcp" ? 0 : GetParam() == "file" ? 1 : 2);
}

TEST_P(MethodTest, ProcessesMustAgreeOnTheSize) {
  TestInitMethod method(GetParam());
  int refused = 0;
  for (const absl::Status& status : RunRanks(2, [&](int i) -> absl::Status {
         WorldOptions options = Options(method, -1, 3 + i);
         options.timeout = UntilRefused();
         return World::Init(options).status();
       })) {
    if (KindOf(status) != ErrorKind::kArgument) continue;
    ++refused;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("world_size is"), HasSubstr("the same world_size"),
                                       HasSubstr(absl::StrCat("pid ", getpid()))));
  }
  EXPECT_EQ(refused, GetParam() == "multicast" ? 2 : 1);
}

// Worlds that nobody shares with this process's tests, one after another in one store.
class RoundsTest : public ::testing::Test {
 protected:
  WorldOptions At(int rank, int size) const {
    WorldOptions options;
    options.backend = "local";
    options.store = store_;
    options.rank = rank;
    options.size = size;
    options.timeout = kTimeout;
    return options;
  }

  const std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

TEST(FileRoundsTest, AssignedRanksMayLeaveAndComeAgainAsLongAsTheStoreLives) {
  TestInitMethod method("file");
  auto keeper = FileStore::Open(method.path()).value();
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : RunRanks(3, [&](int i) -> absl::Status {
           const int rank = i == 1 && round == 1 ? 2 : -1;
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Options(method, rank, 3)));
           SYNCLINE_RETURN_IF_ERROR(AllAreThere(*world));
           world->Close();
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << "round " << round << ": " << status;
    }
  }
}

TEST(FileRoundsTest, MoreProcessesThanTheWorldHasPlacesForAreRefused) {
  TestInitMethod method("file");
  std::vector<std::shared_ptr<World>> worlds(2);
  RunRanks(2, [&](int i) -> absl::Status {
    worlds[i] = World::Init(Options(method, -1, 2)).value();
    return absl::OkStatus();
  });
  for (int rank : {-1, 1}) {  // Nobody claims rank 1, but it has been assigned.
    absl::Status status = World::Init(Options(method, rank, 2)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("more processes than world_size, 2"),
                      HasSubstr(absl::StrCat("pid ", getpid())), HasSubstr("group_name")));
  }
  WorldOptions other = Options(method, -1, 1);
  other.group_name = "another job";
  EXPECT_TRUE(World::Init(other).ok());
  // Both may go and come again: who was refused has left no trace.
  for (auto& world : worlds) world->Close();
  for (const absl::Status& status : RunRanks(2, [&](int) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Options(method, -1, 2)));
         return AllAreThere(*world);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(RoundsTest, TheSizeMayChangeOnceAllHaveLeft) {
  auto world = World::Init(At(0, 1)).value();
  EXPECT_EQ(KindOf(World::Init(At(0, 2)).status()), ErrorKind::kArgument);
  world->Close();
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(auto pair, World::Init(At(rank, 2)));
         return AllAreThere(*pair);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(RoundsTest, OneMayComeAgainBeforeTheOthersHaveLeft) {
  std::vector<std::shared_ptr<World>> first(2);
  RunRanks(2, [&](int rank) -> absl::Status {
    first[rank] = World::Init(At(rank, 2)).value();
    return absl::OkStatus();
  });
  first[0]->Close();
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         if (rank == 1) {  // Leaves only when the other is waiting for it.
           SYNCLINE_RETURN_IF_ERROR(store_->Wait({"size 2/generation/2/slot/1"}, kTimeout));
           first[1]->Close();
         }
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(At(rank, 2)));
         return AllAreThere(*world);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(RoundsTest, WhoComesAfterTheOthersGaveUpWaitsForThemToTryAgainAndIsToldWhy) {
  WorldOptions impatient = At(0, 2);
  impatient.timeout = kShortly;
  EXPECT_EQ(KindOf(World::Init(impatient).status()), ErrorKind::kTimeout);
  impatient.rank = 1;
  absl::Status status = World::Init(impatient).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0 of 2 did not join within"),
                                     HasSubstr("The attempt before had failed, too: rank 1 of 2")));
  EXPECT_THAT(RanksOf(status), ElementsAre(0)) << status;
}

TEST(TcpTest, APortThatIsNotAStoresIsSaidToBeInUse) {
  TestInitMethod method("tcp");
  TCPStore::Options other;
  other.host = "localhost";
  other.port = std::stoi(method.url().substr(method.url().rfind(':') + 1));
  other.role = StoreConfig::Role::kServer;
  auto store = TCPStore::Create(other).value();
  // A store that was not opened by a process without a rank belongs to another job.
  absl::Status status = World::Init(Options(method, 0, 2)).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("in use"), HasSubstr(absl::StrCat("pid ", getpid()))));
}

}  // namespace
}  // namespace syncline
