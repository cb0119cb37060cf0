// Backend nccl between processes that die, stop, stay away or call different things, over the
// stand-ins for NCCL and CUDA. The program is its own worker. As
// tests/backends/backend_kill_test.cc, of the calls that NCCL serves.
#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "tests/backends/device_backend.h"
#include "tests/backends/killable.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kName[] = "nccl_on_devices";
constexpr int64_t kLarge = 1 << 18;  // Elements: 1 MiB.

const BackendRegistry::Registration kRegistered =
    RegisterOnDevices("nccl", kName, Capabilities::All());

bool IsP2p(const std::string& call) { return call == "send" || call == "recv"; }

// Those whose way through the backend differs: one step of NCCL, several, none, between two ranks.
std::vector<std::string> Calls() {
  return {"all_reduce", "broadcast", "all_to_all", "scan", "barrier", "send", "recv"};
}

class Group {
 public:
  explicit Group(const Habit& habit)
      : path_(absl::StrCat(folder_.path(), "/store")), ranks_(kName, path_, habit) {}

  // Until all ranks have made their first call.
  void AwaitUnderWay() { EXPECT_TRUE(ranks_.AwaitUnderWay(*FileStore::Open(path_).value())); }

  KillableGroup* operator->() { return &ranks_; }

 private:
  const ScratchFolder folder_;
  const std::string path_;
  KillableGroup ranks_;
};

class NcclKillTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Calls, NcclKillTest, testing::ValuesIn(Calls()),
                         [](const auto& info) { return info.param; });

TEST_P(NcclKillTest, EverySurvivorOfAKillNamesTheVictimSoon) {
  for (const int64_t count : {int64_t{1}, kLarge}) {
    Group group({GetParam(), count});
    group.AwaitUnderWay();
    const int64_t killed = NowNanos();
    group->Signal(kVictim, SIGKILL);
    for (int rank = 0; rank < kVictim; ++rank) {
      const KillableGroup::Outcome outcome = group->Await(rank);
      EXPECT_THAT(outcome.error, HasSubstr(absl::StrCat(group->Describe(kVictim), " has died")));
      EXPECT_THAT(outcome.ranks, ElementsAre(kVictim));
      EXPECT_EQ(outcome.left, 0);
      EXPECT_LT(absl::Nanoseconds(outcome.nanos - killed), kNotice);
    }
  }
}

TEST_P(NcclKillTest, ARankThatIsStoppedIsATimeoutThatSaysSo) {
  Group group({GetParam(), kLarge, absl::Seconds(1)});
  group.AwaitUnderWay();
  group->Signal(kVictim, SIGSTOP);
  for (int rank = 0; rank < kVictim; ++rank) {
    const KillableGroup::Outcome outcome = group->Await(rank);
    EXPECT_THAT(outcome.ranks, Contains(kVictim));
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                      HasSubstr(group->Describe(kVictim) +
                                " has not arrived after 1s; its process is stopped")));
    EXPECT_EQ(outcome.left, 0);
  }
}

TEST_P(NcclKillTest, ARankInNoOperationIsATimeoutThatTellsItsLastOne) {
  Habit habit{GetParam(), 1, absl::Seconds(1)};
  habit.victims_call = "nothing";
  Group group(habit);
  const std::string last = !IsP2p(GetParam()) ? GetParam() : GetParam() == "send" ? "recv" : "send";
  for (int rank = 0; rank < kVictim; ++rank) {
    EXPECT_THAT(group->Await(rank).error,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                      HasSubstr(absl::StrCat(group->Describe(kVictim),
                                             " has not arrived after 1s; it is in no operation "
                                             "of this group, its last was ",
                                             last, " #0"))));
  }
}

TEST_P(NcclKillTest, ARankInAnotherOperationIsATimeoutThatTellsWhich) {
  if (IsP2p(GetParam())) return;  // Whose other end the victim has.
  Habit habit{GetParam(), 1, absl::Seconds(1)};
  habit.victims_call = "send";  // In which the victim receives.
  Group group(habit);
  for (int rank = 0; rank < kVictim; ++rank) {
    EXPECT_THAT(group->Await(rank).error,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                      HasSubstr(absl::StrCat(group->Describe(kVictim), " has not arrived after ",
                                             "1s; it is in recv #0 from rank 1"))));
  }
  EXPECT_THAT(group->Await(kVictim).error,
              AllOf(HasSubstr("recv #0 from rank 1"), HasSubstr(" reported: " + GetParam() + " #1"),
                    HasSubstr(" after 1s")));
}

TEST_P(NcclKillTest, DifferentCallsAreAMismatchOnEveryRank) {
  Habit habit{GetParam(), 1000};
  habit.victims_count = 3000;
  if (GetParam() == "barrier") habit.victims_call = "all_reduce";
  Group group(habit);
  for (int rank = 0; rank < kKillableRanks; ++rank) {
    const KillableGroup::Outcome outcome = group->Await(rank);
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("FAILED_PRECONDITION"),
                      AnyOf(HasSubstr("rank 0 called "), HasSubstr("rank 1 called ")),
                      HasSubstr(absl::StrCat("rank ", kVictim, " called ")),
                      HasSubstr(absl::StrCat(" called ", GetParam(), " #1")), HasSubstr("3000")));
    EXPECT_EQ(outcome.left, 0);
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  // CUDA's driver and NCCL keep files and threads from their first use on.
  const bool warms_up = !syncline::device::DevicesAreSimulated();
  if (const auto status = syncline::WorkAsKillable(argc, argv, warms_up)) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
