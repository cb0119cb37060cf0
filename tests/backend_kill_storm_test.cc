// One kill or stop after another: any backend, any victim, any operation, at any time. The program
// is its own worker. arguments: --rounds=N and --seed=N.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/file_store.h"
#include "tests/killable.h"
#include "tests/processes.h"

namespace syncline {
namespace {

int rounds = 10;
uint32_t seed = std::random_device()();

std::vector<std::string> OpenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // The iterator's own.
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && !absl::StartsWith(target.string(), "/proc/")) files.push_back(target.string());
  }
  return files;
}

// A whole number from 0 to `end` - 1.
int Draw(std::mt19937& random, int end) {
  return std::uniform_int_distribution<int>(0, end - 1)(random);
}

// Stops a rank, which the others find out when their time is up.
void StopOne(std::mt19937& random, const std::string& path) {
  const std::vector<std::string> calls = KillableCalls();
  const Habit habit{calls[Draw(random, calls.size())], Draw(random, 2) == 0 ? 1 : 1 << 20,
                    absl::Seconds(1)};
  const char* const backends[] = {"gloo", "shm"};
  KillableGroup group(backends[Draw(random, 2)], path, habit);
  EXPECT_TRUE(group.AwaitUnderWay(*FileStore::Open(path).value()));
  absl::SleepFor(absl::Microseconds(Draw(random, 50000)));
  group.Signal(kVictim, SIGSTOP);
  for (int rank = 0; rank < kVictim; ++rank) {
    const KillableGroup::Outcome outcome = group.Await(rank);
    EXPECT_THAT(outcome.error, testing::AllOf(testing::HasSubstr(group.Describe(kVictim)),
                                              testing::HasSubstr("its process is stopped")))
        << habit;
    EXPECT_EQ(outcome.left, 0) << habit;
  }
}

// Returns how long it took until the last survivor's call had returned.
absl::Duration KillOne(std::mt19937& random, const std::string& path) {
  const std::vector<std::string> calls = KillableCalls();
  const Habit habit{calls[Draw(random, calls.size())], Draw(random, 2) == 0 ? 1 : 1 << 20};
  const char* const backends[] = {"gloo", "shm"};
  KillableGroup group(backends[Draw(random, 2)], path, habit);
  EXPECT_TRUE(group.AwaitUnderWay(*FileStore::Open(path).value()));
  const int victim = Draw(random, kKillableRanks);
  absl::SleepFor(absl::Microseconds(Draw(random, 50000)));  // Any moment of any call.
  const int64_t killed = NowNanos();
  group.Signal(victim, SIGKILL);
  absl::Duration slowest;
  for (int rank = 0; rank < kKillableRanks; ++rank) {
    if (rank == victim) continue;
    const KillableGroup::Outcome outcome = group.Await(rank);
    EXPECT_THAT(outcome.error,
                testing::HasSubstr(absl::StrCat(group.Describe(victim), " has died")))
        << habit;
    EXPECT_EQ(outcome.left, 0) << habit;
    slowest = std::max(slowest, absl::Nanoseconds(outcome.nanos - killed));
  }
  EXPECT_LT(slowest, kNotice) << habit;
  return slowest;
}

TEST(BackendKillStormTest, EveryKillAndStopIsNamedByAllOthersAndNothingIsLeft) {
  const ScratchFolder folder;
  const std::vector<std::string> files = OpenFiles();
  std::printf("--rounds=%d --seed=%u\n", rounds, seed);
  std::mt19937 random(seed);
  std::vector<absl::Duration> notices;
  int stops = 0;
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const std::string path = absl::StrCat(folder.path(), "/", round);
    if (Draw(random, 3) == 0) {
      StopOne(random, path);
      ++stops;
    } else {
      notices.push_back(KillOne(random, path));
    }
    std::filesystem::remove(path);  // If the victim did not let the store do so.
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // No child, alive or dead.
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(OpenFiles(), files);
  }
  std::sort(notices.begin(), notices.end());
  if (notices.empty()) return;
  std::printf(
      "%d stops; %zu kills, which all survivors had noticed after %s in the median, %s at most\n",
      stops, notices.size(), absl::FormatDuration(notices[notices.size() / 2]).c_str(),
      absl::FormatDuration(notices.back()).c_str());
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (const auto status = syncline::WorkAsKillable(argc, argv)) return *status;
  testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const bool understood =
        absl::ConsumePrefix(&argument, "--rounds=")
            ? absl::SimpleAtoi(argument, &syncline::rounds) && syncline::rounds > 0
            : absl::ConsumePrefix(&argument, "--seed=") &&
                  absl::SimpleAtoi(argument, &syncline::seed);
    if (!understood) {
      std::fprintf(stderr, "'%s' is not understood: --rounds=N and --seed=N are\n", argv[i]);
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
