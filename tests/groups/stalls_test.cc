// Which ranks keep an operation waiting is said, by one rank: see core/base/stall.h.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/stall.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/hash_store.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Before it is read.
const int kSet = setenv("SYNCLINE_STALL_WARNING", "0.2", 1);

// The lines that are logged while it lives.
class Lines {
 public:
  Lines() {
    SetLogSink([this](LogLevel, absl::string_view line) {
      absl::MutexLock lock(&mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Lines() { SetLogSink(nullptr); }

  std::vector<std::string> All() {
    absl::MutexLock lock(&mutex_);
    return lines_;
  }

  // The first line, of rank `by` if it is not empty, that says of a call of `operation` who is
  // `missing`. Before it, ranks may have waited for each other in what comes earlier.
  std::string Await(const std::string& operation, const std::string& missing,
                    const std::string& by = "") {
    absl::MutexLock lock(&mutex_);
    std::string found;
    const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      for (const std::string& line : lines_) {
        if (found.empty() && absl::StartsWith(line, by) &&
            absl::StrContains(line, absl::StrCat(" in ", operation)) &&
            absl::StrContains(line, absl::StrCat("missing: ", missing))) {
          found = line;
        }
      }
      return !found.empty();
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has), absl::Seconds(60)));
    return found;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class StallsTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, StallsTest,
                         testing::Values("local", "shm", "gloo", "auto", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StallsTest, TheLowestRankThatWaitsSaysWhoIsMissing) {
  ASSERT_EQ(kSet, 0);
  auto store = std::make_shared<HashStore>();
  Lines lines;
  std::string said;
  Countdown have_begun(2), has_said(1);
  const auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    WorldOptions options;
    options.backend = GetParam();
    options.store = store;
    options.rank = rank;
    options.size = 4;
    SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
    SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
    if (rank == 1 || rank == 2) {
      have_begun.StepAndWait();
    } else if (rank == 3) {
      said = lines.Await("all_reduce #1", "ranks 0 and 3: ");
      has_said.Step();
    } else {
      has_said.Wait();
    }
    std::vector<float> elements(3);
    return world->group()->AllReduce(Tensor::Of(elements));
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, AllOf(StartsWith("rank 1 "), HasSubstr("barrier #0")));
}

// Over sockets rank 0 waits for rank 3, which passes on to it what it gets of rank 1.
TEST_P(StallsTest, ARankThatWaitsBehindAnotherSaysWhoIsMissing) {
  auto store = std::make_shared<HashStore>();
  Lines lines;
  const auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    WorldOptions options;
    options.backend = GetParam();
    options.store = store;
    options.rank = rank;
    options.size = 4;
    SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
    SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
    if (rank == 1) lines.Await("broadcast #1", "rank 1", "rank 0 ");
    std::vector<float> elements(3);
    return world->group()->Broadcast(Tensor::Of(elements), /*root=*/1);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  // There all wait for all, and may know that all have come.
  if (std::string(GetParam()) == "gloo") return;
  EXPECT_THAT(
      lines.All(),
      Not(Contains(AllOf(HasSubstr(" in broadcast #1"), HasSubstr("all ranks have come")))));
}

TEST_P(StallsTest, AReceiveThatWaitsNamesTheSender) {
  auto store = std::make_shared<HashStore>();
  Lines lines;
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    WorldOptions options;
    options.backend = GetParam();
    options.store = store;
    options.rank = rank;
    options.size = 2;
    SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
    std::vector<float> elements(3);
    if (rank == 0) return world->group()->Recv(Tensor::Of(elements), 1).status();
    EXPECT_THAT(lines.Await("recv #0", "rank 1"), StartsWith("rank 0 "));
    return world->group()->Send(Tensor::Of(elements), 0);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace syncline
