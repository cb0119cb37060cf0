// Backends between processes that die, stop, stay away or call different things, in the middle
// of every operation. The program is its own worker.
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "syncline/tcp_store.h"
#include "tests/backends/killable.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLarge = 4 << 20;  // Elements: 16 MiB.

// The backends between processes. To add one, add its name.
const char* const kBackends[] = {"auto", "gloo", "shm", "tcp"};

class Group {
 public:
  Group(const std::string& backend, const Habit& habit)
      : path_(absl::StrCat(folder_.path(), "/store")), ranks_(backend, path_, habit) {
    EXPECT_TRUE(ranks_.AwaitUnderWay(*FileStore::Open(path_).value()));
  }

  KillableGroup* operator->() { return &ranks_; }

 private:
  const ScratchFolder folder_;
  const std::string path_;
  KillableGroup ranks_;
};

// A call with many elements, or with one.
class BackendKillTest
    : public testing::TestWithParam<std::tuple<const char*, std::string, int64_t>> {};

INSTANTIATE_TEST_SUITE_P(Calls, BackendKillTest,
                         testing::Combine(testing::ValuesIn(kBackends),
                                          testing::ValuesIn(KillableCalls()),
                                          testing::Values(1, kLarge)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param),
                                               std::get<2>(info.param) == 1 ? "_small" : "_large");
                         });

TEST_P(BackendKillTest, EverySurvivorOfAKillNamesTheVictimSoon) {
  const auto& [backend, call, count] = GetParam();
  Group group(backend, {call, count});
  const int64_t killed = NowNanos();
  group->Signal(kVictim, SIGKILL);
  absl::Duration slowest;
  for (int rank = 0; rank < kVictim; ++rank) {
    const KillableGroup::Outcome outcome = group->Await(rank);
    EXPECT_THAT(outcome.error, HasSubstr(absl::StrCat(group->Describe(kVictim), " has died")));
    EXPECT_THAT(outcome.ranks, ElementsAre(kVictim));
    EXPECT_EQ(outcome.left, 0);
    slowest = std::max(slowest, absl::Nanoseconds(outcome.nanos - killed));
  }
  std::printf("noticed after %s\n", absl::FormatDuration(slowest).c_str());
  EXPECT_LT(slowest, kNotice);
}

// By call, with all backends. The groups wait for their timeouts together, which takes no
// processor; each is made, and brought to wait, before the next.
class BackendAbsenceTest : public testing::TestWithParam<std::string> {
 protected:
  using Step = std::function<void(Group&)>;

  static std::string call() { return GetParam(); }
  static bool IsP2p() { return call() == "send" || call() == "recv" || call() == "recv_from_any"; }

  // Makes a group of each backend and calls `disturb`; then calls `check` with each.
  static void OnEachBackend(const Habit& habit, const Step& disturb, const Step& check) {
    std::vector<std::unique_ptr<Group>> groups;
    for (const char* const backend : kBackends) {
      SCOPED_TRACE(backend);
      groups.push_back(std::make_unique<Group>(backend, habit));
      disturb(*groups.back());
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      SCOPED_TRACE(kBackends[i]);
      check(*groups[i]);
    }
  }

  static void OnEachBackend(const Habit& habit, const Step& check) {
    OnEachBackend(habit, [](Group&) {}, check);
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, BackendAbsenceTest, testing::ValuesIn(KillableCalls()),
                         [](const auto& info) { return info.param; });

TEST_P(BackendAbsenceTest, ARankThatIsStoppedIsATimeoutThatSaysSo) {
  const auto stop = [](Group& group) { group->Signal(kVictim, SIGSTOP); };
  OnEachBackend({call(), kLarge, absl::Seconds(3)}, stop, [](Group& group) {
    const std::string victim = group->Describe(kVictim);
    for (int rank = 0; rank < kVictim; ++rank) {
      // It does not arrive; or it has, and sent to one of the others only, who is a call further.
      const KillableGroup::Outcome outcome = group->Await(rank);
      EXPECT_THAT(outcome.ranks, Contains(kVictim));
      EXPECT_THAT(
          outcome.error,
          AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                AnyOf(HasSubstr(victim + " has not arrived after 3s; its process is stopped"),
                      HasSubstr(victim + " did not report; its process is stopped"))));
    }
  });
}

TEST_P(BackendAbsenceTest, ARankInNoOperationIsATimeoutThatTellsItsLastOne) {
  Habit habit{call(), 1, absl::Seconds(1)};
  habit.victims_call = "nothing";
  const std::string last = !IsP2p() ? call() : call() == "send" ? "recv" : "send";
  OnEachBackend(habit, [&](Group& group) {
    for (int rank = 0; rank < kVictim; ++rank) {
      EXPECT_THAT(group->Await(rank).error,
                  AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                        HasSubstr(absl::StrCat(
                            group->Describe(kVictim), " has not arrived after 1s; it is ",
                            "in no operation of this group, its last was ", last, " #0"))));
    }
  });
}

TEST_P(BackendAbsenceTest, ARankInAnotherOperationIsATimeoutThatTellsWhich) {
  if (IsP2p()) return;  // Whose other end the victim has.
  Habit habit{call(), 1, absl::Seconds(1)};
  habit.victims_call = "send";  // In which the victim receives.
  OnEachBackend(habit, [](Group& group) {
    for (int rank = 0; rank < kVictim; ++rank) {
      EXPECT_THAT(group->Await(rank).error,
                  AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                        HasSubstr(absl::StrCat(group->Describe(kVictim), " has not arrived after ",
                                               "1s; it is in recv #0 from rank 1"))));
    }
    // A rank that only gives may be some calls further, and says then which one the victim lacks.
    EXPECT_THAT(group->Await(kVictim).error,
                AllOf(HasSubstr("recv #0 from rank 1"),
                      AnyOf(HasSubstr(" reported: " + call() + " #1 "),
                            HasSubstr(" reported: " + call() + " #1:"),
                            AllOf(HasSubstr(" reported: " + call() + " #"),
                                  HasSubstr("it has not taken " + call() + " #1"))),
                      HasSubstr(" after 1s")));
  });
}

TEST_P(BackendAbsenceTest, DifferentCallsAreAMismatchOnEveryRank) {
  Habit habit{call(), 1000};
  habit.victims_count = 3000;
  if (call() == "barrier") habit.victims_call = "all_reduce";
  const std::string kind = call().substr(0, call().find("_from"));
  OnEachBackend(habit, [&](Group& group) {
    for (int rank = 0; rank < kKillableRanks; ++rank) {
      EXPECT_THAT(group->Await(rank).error,
                  AllOf(HasSubstr("FAILED_PRECONDITION"),
                        AnyOf(HasSubstr("rank 0 called "), HasSubstr("rank 1 called ")),
                        HasSubstr(absl::StrCat("rank ", kVictim, " called ")),
                        HasSubstr(absl::StrCat(" called ", kind, " #1")), HasSubstr("3000")));
    }
  });
}

TEST(GlooStoreTest, TheVictimIsNamedEvenIfTheStoreDiesWithIt) {
  // Rank 0's process would host the store; here this one does, so that it can be taken away first.
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  auto store = TCPStore::Create(options).value();
  KillableGroup group("gloo", absl::StrCat(store->port()), {"all_reduce", kLarge});
  ASSERT_TRUE(group.AwaitUnderWay(*store));
  const std::string address = store->ToString();
  store.reset();
  const int64_t killed = NowNanos();
  group.Signal(0, SIGKILL);
  for (int rank : {1, 2}) {
    const KillableGroup::Outcome outcome = group.Await(rank);
    // Without the store nobody knows that the other survivor had failed before it ended.
    EXPECT_THAT(outcome.error,
                AllOf(AnyOf(HasSubstr(absl::StrCat(group.Describe(0), " has died")),
                            AllOf(HasSubstr(absl::StrCat(group.Describe(0), ", ")),
                                  HasSubstr(" have died"))),
                      HasSubstr(absl::StrCat("the store at ", address, " does not answer"))));
    EXPECT_LT(absl::Nanoseconds(outcome.nanos - killed), 2 * kNotice);
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (const auto status = syncline::WorkAsKillable(argc, argv)) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
