// Ranks that join a group while one of them is interrupted: the others hear of it, and wait neither
// for that rank nor for their timeout.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/forwarding_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Far less than the timeout of joining, or the half minute that shared memory may take.
constexpr absl::Duration kTimeout = absl::Seconds(50), kSoon = absl::Seconds(10);

// The store of one rank, which is interrupted from `delay` after its `last_write`-th write on.
class InterruptingStore final : public ForwardingStore {
 public:
  InterruptingStore(std::shared_ptr<Store> store, int last_write, absl::Duration delay)
      : ForwardingStore(std::move(store)), left_(last_write), delay_(delay) {}

  // Of the thread that writes.
  bool is_over() const { return left_ <= 0 && absl::Now() >= last_ + delay_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const absl::Status status = store().Set(key, value);
    CountWrite();
    return status;
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    const auto sum = store().Add(key, amount);
    CountWrite();
    return sum;
  }

 private:
  void CountWrite() {
    if (--left_ == 0) last_ = absl::Now();
  }

  std::atomic<int> left_;
  const absl::Duration delay_;
  absl::Time last_;
};

// The store of a rank for which the others wait longer than an interrupt may go unnoticed.
class SlowStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    absl::SleepFor(2 * kInterruptInterval);
    const absl::Status status = store().Set(key, value);
    absl::SleepFor(4 * kInterruptInterval);  // Others wait for its connections.
    return status;
  }
};

// A backend, and so many hosts whose ranks come in turns.
using Case = std::tuple<std::string, int>;

class InterruptedJoinTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kSize = 4;

  struct Outcome {
    std::vector<absl::Status> statuses;
    bool was_interrupted = false;
    absl::Duration longest;
  };

  static Outcome Join(int victim, int last_write, absl::Duration delay) {
    const auto& [backend, hosts] = GetParam();
    const auto all = std::make_shared<HashStore>();
    Outcome outcome;
    std::vector<absl::Duration> took(kSize);
    outcome.statuses = RunRanks(kSize, [&, &backend = backend, &hosts = hosts](int rank) {
      const absl::Time start = absl::Now();
      std::shared_ptr<Store> store =
          std::make_shared<StoreOnHost>(all, absl::StrCat("host_", rank % hosts));
      absl::Status status;
      if (rank == victim) {
        const auto interrupting = std::make_shared<InterruptingStore>(store, last_write, delay);
        const auto check = [&] {
          return interrupting->is_over() ? InterruptedError("Ctrl-C") : absl::OkStatus();
        };
        const InterruptScope scope(check);
        store = interrupting;
        status = BackendRegistry::Make(backend, OnLoopback(store, rank, kSize, kTimeout)).status();
        outcome.was_interrupted = interrupting->is_over();
      } else {
        if (rank == 1) store = std::make_shared<SlowStore>(store);
        status = BackendRegistry::Make(backend, OnLoopback(store, rank, kSize, kTimeout)).status();
      }
      took[rank] = absl::Now() - start;
      return status;
    });
    outcome.longest = *std::max_element(took.begin(), took.end());
    return outcome;
  }

  static void CheckOutcome(const Outcome& outcome, int victim) {
    EXPECT_LT(outcome.longest, kSoon);
    for (int rank = 0; rank < kSize; ++rank) {
      const absl::Status& status = outcome.statuses[rank];
      if (status.ok()) continue;
      if (rank == victim) {
        EXPECT_TRUE(IsInterrupted(status)) << status;
      } else if (std::get<0>(GetParam()) == "gloo") {
        // One whose connection ends may hear first of another that has given up because of that.
        EXPECT_THAT(RanksOf(status), Not(IsEmpty())) << "rank " << rank << ": " << status;
      } else {
        EXPECT_THAT(RanksOf(status), ElementsAre(victim)) << "rank " << rank << ": " << status;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, InterruptedJoinTest,
                         testing::Values(Case("tcp", 1), Case("gloo", 1), Case("shm", 1),
                                         Case("auto", 1), Case("auto", 2), Case("auto", 4)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_on_",
                                               std::get<1>(info.param));
                         });

TEST_P(InterruptedJoinTest, WhereverARankIsInterruptedTheOthersHearOfItSoon) {
  // The groups mostly wait, so they do so together.
  std::vector<std::thread> threads;
  for (const int victim : {0, kSize - 1}) {
    // While a table is not complete, and a bit later.
    for (const absl::Duration delay : {absl::ZeroDuration(), 3 * kInterruptInterval}) {
      threads.emplace_back([victim, delay] {
        Outcome outcome;
        int writes = 0;
        do {
          SCOPED_TRACE(absl::StrCat("rank ", victim, " ", absl::FormatDuration(delay),
                                    " after its write ", ++writes));
          outcome = Join(victim, writes, delay);
          CheckOutcome(outcome, victim);
        } while (outcome.was_interrupted);
        EXPECT_GT(writes, 1);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncline
