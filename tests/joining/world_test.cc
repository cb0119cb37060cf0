// World and ProcessGroup over real stores and backends, ranks as threads.
#include "syncline/world.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/log.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Before the first line, when the log reads it.
const int kLogsInfo = setenv("SYNCLINE_LOG_LEVEL", "info", 1);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

WorldOptions Rank(std::shared_ptr<Store> store, int rank, int size, std::string backend) {
  WorldOptions options;
  options.backend = std::move(backend);
  options.store = std::move(store);
  options.rank = rank;
  options.size = size;
  options.timeout = absl::Seconds(30);
  return options;
}

absl::Status SumsUp(ProcessGroup& group) {
  std::vector<int32_t> x = {1, static_cast<int32_t>(group.rank())};
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(x)));
  const int32_t n = static_cast<int32_t>(group.size());
  if (x != std::vector<int32_t>{n, n * (n - 1) / 2}) return absl::InternalError("wrong sum");
  return absl::OkStatus();
}

class WorldTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs `body` on a world of `size` ranks that met in one store.
  template <typename Body>
  void RunWorld(int size, Body body) {
    auto store = std::make_shared<HashStore>();
    for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Rank(store, rank, size, GetParam())));
           return body(*world);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, WorldTest, ::testing::Values("local", "gloo", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(WorldTest, AllRanksMeetInOneStore) {
  RunWorld(3, [](World& world) { return SumsUp(*world.group()); });
}

TEST_P(WorldTest, SubgroupsHaveRanksOfTheirOwnAndWorkBesideTheWorld) {
  RunWorld(4, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto odd, world.NewGroup({3, 1}));
    SYNCLINE_ASSIGN_OR_RETURN(auto all, world.NewGroup({0, 1, 2, 3}));
    const bool is_odd = world.rank() % 2 == 1;
    if ((odd != nullptr) != is_odd) return absl::InternalError("wrong members");
    if (is_odd) {
      if (odd->rank() != (world.rank() == 3 ? 0 : 1)) return absl::InternalError("wrong rank");
      SYNCLINE_RETURN_IF_ERROR(SumsUp(*odd));
    }
    SYNCLINE_RETURN_IF_ERROR(SumsUp(*all));
    return SumsUp(*world.group());
  });
}

TEST_P(WorldTest, AsynchronousOperationsOverlapAndKeepTheirOrder) {
  RunWorld(3, [](World& world) -> absl::Status {
    std::vector<std::vector<float>> tensors(20, std::vector<float>(1000, 1));
    std::vector<std::shared_ptr<Work>> works;
    for (auto& tensor : tensors) {
      SYNCLINE_ASSIGN_OR_RETURN(auto work, world.group()->AllReduceAsync(Tensor::Of(tensor)));
      works.push_back(work);
    }
    SYNCLINE_RETURN_IF_ERROR(SumsUp(*world.group()));
    for (auto& work : works) SYNCLINE_RETURN_IF_ERROR(work->Wait(absl::Seconds(30)));
    for (auto& tensor : tensors) {
      if (tensor != std::vector<float>(1000, 3)) return absl::InternalError("wrong sum");
    }
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, BothRanksMaySendBeforeTheyReceive) {
  RunWorld(2, [](World& world) -> absl::Status {
    const int peer = 1 - world.rank();
    std::vector<float> out(1 << 20, static_cast<float>(world.rank()));
    std::vector<float> in(1 << 20, -1);
    SYNCLINE_ASSIGN_OR_RETURN(auto send, world.group()->SendAsync(Tensor::Of(out), peer));
    SYNCLINE_ASSIGN_OR_RETURN(auto recv, world.group()->RecvAsync(Tensor::Of(in), peer));
    SYNCLINE_RETURN_IF_ERROR(send->Wait());
    SYNCLINE_RETURN_IF_ERROR(recv->Wait());
    if (in != std::vector<float>(1 << 20, static_cast<float>(peer))) {
      return absl::InternalError("wrong data");
    }
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, TheReducerAveragesOverAllRanks) {
  RunWorld(3, [](World& world) -> absl::Status {
    std::vector<Tensor> parameters;
    for (int64_t n : {5, 0, 1000, 7}) parameters.push_back(Tensor::Zeros(DType::kFloat32, {n}));
    Reducer::Options options;
    options.caps = {100, 100};
    SYNCLINE_ASSIGN_OR_RETURN(auto reducer, Reducer::Create(world.group(), parameters, options));
    for (int step = 0; step < 3; ++step) {
      for (int64_t k = 0; k < 4; ++k) {  // Each rank in an order of its own.
        const int64_t i = (k + world.rank()) % 4;
        SYNCLINE_ASSIGN_OR_RETURN(Tensor gradient, reducer->gradient(i));
        float* values = gradient.data_as<float>();
        std::fill(values, values + gradient.numel(), static_cast<float>(world.rank() * (step + i)));
        SYNCLINE_RETURN_IF_ERROR(reducer->MarkReady(i));
      }
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      for (int64_t i = 0; i < 4; ++i) {
        Tensor gradient = *reducer->gradient(i);
        for (int64_t e = 0; e < gradient.numel(); ++e) {
          if (gradient.data_as<float>()[e] != static_cast<float>(step + i)) {
            return absl::InternalError(absl::StrCat("wrong average of ", i));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, ModelsThatDifferAreAMismatchOnEveryRank) {
  RunWorld(3, [](World& world) -> absl::Status {
    std::vector<Tensor> parameters = {Tensor::Zeros(DType::kFloat32, {4}),
                                      Tensor::Zeros(DType::kFloat32, {world.rank() == 2 ? 6 : 5})};
    Reducer::Options options;
    options.names = {"encoder.weight", "decoder.weight"};
    absl::Status status = Reducer::Create(world.group(), parameters, options).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("'decoder.weight'"), HasSubstr("rank 2")));
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, BucketCapsThatDifferAreAMismatchOnEveryRank) {
  RunWorld(2, [](World& world) -> absl::Status {
    Reducer::Options options;
    options.caps.others = world.rank() == 0 ? 100 : 200;
    absl::Status status =
        Reducer::Create(world.group(), {Tensor::Zeros(DType::kFloat32, {4})}, options).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("100"), HasSubstr("200")));
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, RanksThatHaveLeftMeetAgainInTheSameStore) {
  auto store = std::make_shared<HashStore>();
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : RunRanks(3, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Rank(store, rank, 3, GetParam())));
           SYNCLINE_ASSIGN_OR_RETURN(auto pair, world->NewGroup({0, 2}));
           if (pair != nullptr) SYNCLINE_RETURN_IF_ERROR(SumsUp(*pair));
           SYNCLINE_RETURN_IF_ERROR(SumsUp(*world->group()));
           world->Close();
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << "round " << round << ": " << status;
    }
  }
}

TEST_P(WorldTest, ARankKnowsItsPlaceAmongThoseOfItsHost) {
  RunWorld(3, [](World& world) -> absl::Status {
    EXPECT_EQ(world.local_rank(), world.rank());
    return absl::OkStatus();
  });
}

TEST_P(WorldTest, AfterCloseOperationsAreRefused) {
  RunWorld(2, [](World& world) -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(SumsUp(*world.group()));
    world.Close();
    absl::Status status = world.group()->Barrier();
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
    EXPECT_THAT(Message(status), HasSubstr("closed"));
    return absl::OkStatus();
  });
}

TEST(JoinTest, ARankThatIsMissingIsNamed) {
  auto store = std::make_shared<HashStore>();
  auto statuses = RunRanks(2, [&](int rank) {
    WorldOptions options = Rank(store, rank, 3, "local");
    options.timeout = absl::Seconds(2);
    return World::Init(options).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2 of 3 did not join"),
                                       HasSubstr(absl::StrCat("pid ", getpid()))));
    EXPECT_THAT(RanksOf(status), ElementsAre(2)) << status;
  }
}

TEST(JoinTest, ARankThatIsTakenIsRefused) {
  auto store = std::make_shared<HashStore>();
  ASSERT_TRUE(World::Init(Rank(store, 0, 1, "local")).ok());
  absl::Status status = World::Init(Rank(store, 0, 1, "local")).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("rank 0 is taken"), HasSubstr(absl::StrCat("pid ", getpid()))));
}

TEST(JoinTest, RanksMustAgreeOnTheSizeOfTheWorld) {
  auto store = std::make_shared<HashStore>();
  ASSERT_TRUE(World::Init(Rank(store, 0, 1, "local")).ok());
  absl::Status status = World::Init(Rank(store, 1, 2, "local")).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("world_size is 2"), HasSubstr("said 1")));
}

TEST(JoinTest, WorldsOfDifferentNamesShareAStore) {
  auto store = std::make_shared<HashStore>();
  for (const char* name : {"training", "evaluation"}) {
    WorldOptions options = Rank(store, 0, 1, "local");
    options.group_name = name;
    EXPECT_TRUE(World::Init(options).ok());
  }
}

TEST(JoinTest, BadArgumentsAreRefusedBeforeAnythingIsJoined) {
  auto store = std::make_shared<HashStore>();
  auto refused = [](const WorldOptions& options, const char* text) {
    absl::Status status = World::Init(options).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr(text));
  };
  refused(Rank(store, 0, 1, "gluu"),
          "unknown backend 'gluu'; choose one of: auto, gloo, local, mpi, nccl, shm");
  refused(Rank(store, 2, 2, "local"), "rank 2");
  refused(Rank(store, -1, 2, "local"), "rank and world_size are needed");
  WorldOptions both = Rank(store, 0, 1, "local");
  both.init_method = "env://";
  refused(both, "not both");
  WorldOptions never = Rank(store, 0, 1, "local");
  never.timeout = absl::ZeroDuration();
  refused(never, "timeout must be positive");
}

TEST(JoinTest, GroupsOfUnknownOrRepeatedRanksAreRefused) {
  auto world = World::Init(Rank(std::make_shared<HashStore>(), 0, 1, "local")).value();
  EXPECT_THAT(Message(world->NewGroup({}).status()), HasSubstr("at least one rank"));
  EXPECT_THAT(Message(world->NewGroup({1}).status()), HasSubstr("rank 1 is not in the world"));
  EXPECT_THAT(Message(world->NewGroup({0, 0}).status()), HasSubstr("listed twice"));
}

class InitMethodsTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Schemes, InitMethodsTest, ::testing::Values("file", "tcp", "env"),
                         [](const auto& info) { return info.param; });

// Joins a world of 2 over loopback with `method`, and works in it.
void ExpectWorldMeets(const std::string& method) {
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         WorldOptions options;
         options.init_method = method;
         options.rank = rank;
         options.size = 2;
         options.timeout = absl::Seconds(30);
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
         SYNCLINE_RETURN_IF_ERROR(SumsUp(*world->group()));
         // Rank 0 hosts the tcp store: nobody leaves before all have finished.
         return world->group()->Barrier();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(InitMethodsTest, TwoRanksMeet) {
  if (GetParam() == "file") {
    char folder[] = "/tmp/syncline_world_test_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    const std::string path = absl::StrCat(folder, "/store");
    ExpectWorldMeets(absl::StrCat("file://", path));
    struct stat info;
    EXPECT_NE(stat(path.c_str(), &info), 0) << "the last to leave removes the file";
    EXPECT_EQ(rmdir(folder), 0);
    return;
  }
  const std::string port = absl::StrCat(FreePort());
  if (GetParam() == "tcp") return ExpectWorldMeets(absl::StrCat("tcp://127.0.0.1:", port));
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  ExpectWorldMeets("env://");
}

class AloneTest : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {
      "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SYNCLINE_STORE", "PMI_RANK", "PMI_SIZE"};
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
    SetLogSink(nullptr);
  }
  void TearDown() override { SetUp(); }
};

// How many sockets this process has open, by /proc.
int Sockets() {
  int count = 0;
  char target[64];
  for (int fd = 0; fd < 1024; ++fd) {
    const ssize_t size =
        readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target));
    count += size > 0 && std::string(target, size).rfind("socket:", 0) == 0;
  }
  return count;
}

TEST_F(AloneTest, AWorldOfOneNeedsNothing) {
  const int before = Sockets();
  WorldOptions options;
  options.backend = "local";
  auto world = World::Init(options);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ((*world)->rank(), 0);
  EXPECT_EQ((*world)->size(), 1);
  EXPECT_TRUE(SumsUp(*(*world)->group()).ok());
  EXPECT_EQ(Sockets(), before);
  (*world)->Close();
}

TEST_F(AloneTest, AWorldOfOneSaysSoOnceAndWhy) {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  WorldOptions options;
  options.backend = "local";
  ASSERT_TRUE(World::Init(options).ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("world of one"), HasSubstr("no launcher has started")));
}

TEST_F(AloneTest, RankZeroOfOneIsAloneWhateverTheEnvironmentSays) {
  setenv("PMI_RANK", "1", 1);
  setenv("PMI_SIZE", "2", 1);
  WorldOptions options;
  options.backend = "local";
  options.rank = 0;
  options.size = 1;
  EXPECT_TRUE(World::Init(options).ok());
  setenv("RANK", "1", 1);
  EXPECT_TRUE(World::Init(options).ok());
}

TEST_F(AloneTest, ATaskOfALauncherIsNotAlone) {
  setenv("PMI_RANK", "0", 1);
  setenv("PMI_SIZE", "2", 1);
  WorldOptions options;
  options.backend = "local";
  EXPECT_THAT(Message(World::Init(options).status()), HasSubstr("PMI started this process"));
  setenv("PMI_SIZE", "1", 1);
  EXPECT_TRUE(World::Init(options).ok());
}

TEST_F(AloneTest, ARankWithoutASizeIsNotAlone) {
  WorldOptions options;
  options.backend = "local";
  options.rank = 0;
  EXPECT_THAT(Message(World::Init(options).status()), HasSubstr("WORLD_SIZE is not set"));
}

TEST_F(AloneTest, HalfAnEnvironmentIsAnError) {
  WorldOptions options;
  options.backend = "local";
  setenv("RANK", "0", 1);
  absl::Status status = World::Init(options).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(Message(status), HasSubstr("WORLD_SIZE is not set"));
}

TEST_F(AloneTest, WhoAsksForMoreThanOneIsNotAlone) {
  WorldOptions options;
  options.backend = "local";
  options.rank = 0;
  options.size = 2;
  EXPECT_THAT(Message(World::Init(options).status()), HasSubstr("MASTER_ADDR is not set"));
  options.size = -1;
  options.init_method = "env://";
  EXPECT_THAT(Message(World::Init(options).status()), HasSubstr("is not set"));
  options.rank = -2;
  EXPECT_THAT(Message(World::Init(options).status()), HasSubstr("got rank -2"));
}

}  // namespace
}  // namespace syncline
