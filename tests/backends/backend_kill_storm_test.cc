// One kill, stop or pause after another: any backend, any victim, any operation, at any time; every
// result is checked. The program is its own worker. arguments: --rounds=N, --seed=N, --backend=NAME
// (shm, gloo or auto on two hosts; shm and gloo in turns without it) and --load=N, so many
// processes that keep the processors busy.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "tests/backends/killable.h"
#include "tests/support/arguments.h"
#include "tests/support/hosts.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

int rounds = 10;
uint32_t seed = std::random_device()();
std::string backend;
int load = 0;

constexpr char kBusy[] = "--busy";

// How long calls of groups take at most of which a rank is stopped, and how soon deaths are
// noticed.
absl::Duration StopTimeout() { return absl::Seconds(load > 0 ? 4 : 2); }
absl::Duration NoticeLimit() { return load > 0 ? absl::Seconds(20) : kNotice; }

std::vector<std::string> OpenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // The iterator's own.
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && !absl::StartsWith(target.string(), "/proc/")) files.push_back(target.string());
  }
  return files;
}

// What the error says of the victim: auto tells, between hosts, what it has seen of it.
std::string Cause(const char* text) { return backend == "auto" ? "" : text; }

// The processes that this one has started, alive or not.
std::string Children() {
  std::ifstream file(absl::StrCat("/proc/self/task/", getpid(), "/children"));
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// A whole number from 0 to `end` - 1.
int Draw(std::mt19937& random, int end) {
  return std::uniform_int_distribution<int>(0, end - 1)(random);
}

// What all groups of the storm have in common.
class Storm {
 public:
  explicit Storm(uint32_t seed) : random_(seed) {
    for (int i = 0; i < load; ++i)
      busy_.push_back(std::make_unique<Process>(std::vector<std::string>{kBusy}));
    if (backend != "auto") return;
    hosts_ = std::make_unique<Hosts>(2);
    for (int host = 0; host < 2; ++host)
      seats_.push_back({hosts_->door(host), AddressOfHost(host)});
  }

  int Draw(int end) { return syncline::Draw(random_, end); }
  void Sleep(absl::Duration most) {  // Any moment of any call.
    absl::SleepFor(absl::Microseconds(Draw(static_cast<int>(absl::ToInt64Microseconds(most)))));
  }

  Habit AnyHabit(absl::Duration timeout) {
    const std::vector<std::string> calls = KillableCalls();
    Habit habit{calls[Draw(static_cast<int>(calls.size()))], Draw(2) == 0 ? 1 : 1 << 20, timeout};
    habit.checks = true;
    return habit;
  }

  // A group under way.
  std::unique_ptr<KillableGroup> Start(const Habit& habit, const std::string& path) {
    const char* const backends[] = {"gloo", "shm", "tcp"};
    const std::string name = backend.empty() ? backends[Draw(3)] : backend;
    auto group = std::make_unique<KillableGroup>(name, path, habit, seats_);
    EXPECT_TRUE(group->AwaitUnderWay(*FileStore::Open(path).value())) << name << ", " << habit;
    return group;
  }

 private:
  std::mt19937 random_;
  std::vector<std::unique_ptr<Process>> busy_;
  std::unique_ptr<Hosts> hosts_;
  std::vector<HostSeat> seats_;
};

// Stops a rank, which the others find out when their time is up. When it goes on, alone, it gets an
// error too, and no result that is not one.
void StopOne(Storm& storm, const std::string& path) {
  const Habit habit = storm.AnyHabit(StopTimeout());
  const auto started = storm.Start(habit, path);
  KillableGroup& group = *started;
  storm.Sleep(absl::Milliseconds(50));
  group.Signal(kVictim, SIGSTOP);
  for (int rank = 0; rank < kVictim; ++rank) {
    const KillableGroup::Outcome outcome = group.Await(rank);
    EXPECT_THAT(outcome.error, testing::AllOf(testing::HasSubstr(group.Describe(kVictim)),
                                              testing::HasSubstr(Cause("its process is stopped"))))
        << habit;
    EXPECT_EQ(outcome.left, 0) << habit;
  }
  group.Signal(kVictim, SIGCONT);
  const KillableGroup::Outcome outcome = group.Await(kVictim);
  EXPECT_THAT(outcome.error, testing::Not(testing::HasSubstr(kWrong))) << habit;
  EXPECT_EQ(outcome.left, 0) << habit << ": " << outcome.error;
}

// Returns how long it took until the last survivor's call had returned.
absl::Duration KillOne(Storm& storm, const std::string& path, bool pauses) {
  const Habit habit = storm.AnyHabit(absl::Seconds(60));
  const auto started = storm.Start(habit, path);
  KillableGroup& group = *started;
  if (pauses) {
    const int paused = storm.Draw(kKillableRanks);
    storm.Sleep(absl::Milliseconds(50));
    group.Signal(paused, SIGSTOP);
    storm.Sleep(absl::Milliseconds(300));
    group.Signal(paused, SIGCONT);
  }
  const int victim = storm.Draw(kKillableRanks);
  storm.Sleep(absl::Milliseconds(50));
  const int64_t killed = NowNanos();
  group.Signal(victim, SIGKILL);
  absl::Duration slowest;
  for (int rank = 0; rank < kKillableRanks; ++rank) {
    if (rank == victim) continue;
    const KillableGroup::Outcome outcome = group.Await(rank);
    EXPECT_THAT(outcome.error,
                testing::HasSubstr(absl::StrCat(group.Describe(victim), Cause(" has died"))))
        << habit;
    EXPECT_EQ(outcome.left, 0) << habit;
    slowest = std::max(slowest, absl::Nanoseconds(outcome.nanos - killed));
  }
  EXPECT_LT(slowest, NoticeLimit()) << habit;
  return slowest;
}

TEST(BackendKillStormTest, EveryKillAndStopIsNamedByAllOthersAndNothingIsLeft) {
  const ScratchFolder folder;
  std::printf("--rounds=%d --seed=%u --backend=%s --load=%d\n", rounds, seed, backend.c_str(),
              load);
  Storm storm(seed);
  const std::vector<std::string> files = OpenFiles();
  const std::string children = Children();
  std::vector<absl::Duration> notices;
  int stops = 0, pauses = 0;
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const std::string path = absl::StrCat(folder.path(), "/", round);
    const int kind = storm.Draw(3);
    if (kind == 0) {
      StopOne(storm, path);
      ++stops;
    } else {
      notices.push_back(KillOne(storm, path, kind == 1));
      pauses += kind == 1;
    }
    std::filesystem::remove(path);  // If the victim did not let the store do so.
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(Children(), children);  // No child more, alive or dead.
    if (children.empty()) {
      EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
      EXPECT_EQ(errno, ECHILD);
    }
    EXPECT_EQ(OpenFiles(), files);
  }
  std::sort(notices.begin(), notices.end());
  if (notices.empty()) return;
  std::printf(
      "%d stops, %d pauses; %zu kills, which all survivors had noticed after %s in the median, %s "
      "at most\n",
      stops, pauses, notices.size(), absl::FormatDuration(notices[notices.size() / 2]).c_str(),
      absl::FormatDuration(notices.back()).c_str());
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (const auto status = syncline::WorkAsKillable(argc, argv)) return *status;
  if (const auto status = syncline::WorkAsHost(argc, argv)) return *status;
  if (argc == 2 && std::string(argv[1]) == syncline::kBusy) {
    for (volatile uint64_t turn = 0;; turn = turn + 1) continue;
  }
  testing::InitGoogleMock(&argc, argv);
  syncline::ReadArguments(argc, argv,
                          {{"rounds", &syncline::rounds},
                           {"seed", &syncline::seed},
                           {"load", &syncline::load},
                           {"backend", &syncline::backend}});
  if (syncline::backend == "auto" && !syncline::EnterNewNetwork()) {
    std::printf("skipped: this user may not make network namespaces\n");
    return 0;
  }
  return RUN_ALL_TESTS();
}
