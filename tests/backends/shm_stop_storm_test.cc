// Ranks of one host that are stopped at any moment, some of them for longer than the others wait,
// and go on, while all use the same tensors in shared memory again and again. A call may fail, but
// what succeeds is right, byte by byte. The program is its own worker. Arguments: --rounds=N and
// --seed=N.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "syncline/store.h"
#include "tests/backends/shared_calls.h"
#include "tests/support/arguments.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr int64_t kPart = 1 << 20;
constexpr absl::Duration kTestTimeout = absl::Seconds(60);    // For what must happen.
constexpr absl::Duration kTimeout = absl::Milliseconds(150);  // Of the calls.
constexpr uint8_t kReused = 255;  // What a rank has in its tensors after its call has failed.

int rounds = 8;
uint32_t seed = 1;

// A whole number from 0 to `end` - 1.
int Draw(std::mt19937& random, int end) {
  return std::uniform_int_distribution<int>(0, end - 1)(random);
}

std::string UnderWayKey(int rank) { return absl::StrCat("under way/", rank); }

// Of all ranks.
std::vector<std::string> UnderWayKeys() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < kRanks; ++rank) keys.push_back(UnderWayKey(rank));
  return keys;
}

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank) {
  return BackendRegistry::Make("shm", OnLoopback(std::move(store), rank, kRanks, kTestTimeout));
}

// ---- A worker ----

// Sends all that this rank brings to the next one, and receives from the one before.
absl::Status PassOn(const SharedBuffers& buffers, int rank, Backend& backend,
                    const CallContext& context) {
  absl::Status sent;
  std::thread sender([&] {
    sent =
        RunAndWait(backend, Collective::Send(buffers.own, (rank + 1) % kRanks), context).status();
  });
  const absl::Status received =
      RunAndWait(backend, Collective::Recv(buffers.result, (rank + kRanks - 1) % kRanks), context)
          .status();
  sender.join();
  return received.ok() ? sent : received;
}

// Makes one call after another, on two sets of tensors in turns, until one fails. Every rank draws
// the same ones.
absl::Status CallUntilFailure(Backend& backend, int rank, uint32_t seed, Store& store) {
  const SharedBuffers sets[] = {SharedBuffers(kRanks, kPart), SharedBuffers(kRanks, kPart)};
  std::mt19937 random(seed);
  for (uint64_t turn = 0;; ++turn) {
    const SharedBuffers& buffers = sets[turn % 2];
    std::vector<uint8_t> values;
    for (int r = 0; r < kRanks; ++r) values.push_back(static_cast<uint8_t>(Draw(random, kReused)));
    const int root = Draw(random, kRanks);
    const auto draw = static_cast<size_t>(Draw(random, SharedCalls().size() + 1));
    const bool passes_on = draw == SharedCalls().size();
    const OpKind kind = passes_on ? OpKind::kSend : SharedCalls()[draw];
    buffers.Fill(values[rank]);
    const CallContext context = {turn, Deadline(turn == 0 ? kTestTimeout : kTimeout)};
    const absl::Status status = passes_on ? PassOn(buffers, rank, backend, context)
                                          : RunShared(kind, buffers, root, backend, context);
    if (!status.ok()) {
      for (const SharedBuffers& each : sets) each.Fill(kReused);
      return status;
    }
    const absl::Status right = passes_on
                                   ? CheckAll(buffers.result, values[(rank + kRanks - 1) % kRanks])
                                   : CheckShared(kind, buffers, root, rank, values);
    if (!right.ok()) {
      return Annotate(right, absl::StrCat("WRONG: rank ", rank, ", ", Name(kind), " #", turn));
    }
    if (turn == 0) {
      SYNCLINE_RETURN_IF_ERROR(store.Set(UnderWayKey(rank), ""));
      // Who may give up fails the others, which would be in the first call still.
      SYNCLINE_RETURN_IF_ERROR(store.Wait(UnderWayKeys(), kTestTimeout));
    }
  }
}

// Prints how it ended. Arguments: --worker store rank seed.
int Work(char** argv) {
  int rank;
  uint32_t seed;
  if (!absl::SimpleAtoi(argv[3], &rank) || !absl::SimpleAtoi(argv[4], &seed)) return 1;
  const std::shared_ptr<Store> store = FileStore::Open(argv[2]).value();
  const auto backend = Join(store, rank);
  const absl::Status status =
      backend.ok() ? CallUntilFailure(**backend, rank, seed, *store) : backend.status();
  std::printf("%s\n", status.ToString().c_str());
  return 0;
}

// ---- The test ----

// Stops ranks for a while a few times, and then some until the others have given up.
void RunRound(const std::string& path, std::mt19937& random) {
  std::vector<std::unique_ptr<Process>> workers;
  const uint32_t workers_seed = random();
  for (int rank = 0; rank < kRanks; ++rank) {
    workers.push_back(std::make_unique<Process>(std::vector<std::string>{
        "--worker", path, absl::StrCat(rank), absl::StrCat(workers_seed)}));
  }
  ASSERT_TRUE(FileStore::Open(path).value()->Wait(UnderWayKeys(), kTestTimeout).ok());
  const auto signal = [&](int rank, int number) { kill(workers[rank]->pid(), number); };
  for (int stops = Draw(random, 4); stops > 0; --stops) {
    const int rank = Draw(random, kRanks);
    absl::SleepFor(absl::Microseconds(Draw(random, 50'000)));
    signal(rank, SIGSTOP);
    absl::SleepFor(absl::Microseconds(Draw(random, 50'000)));
    signal(rank, SIGCONT);
  }
  absl::SleepFor(absl::Microseconds(Draw(random, 50'000)));
  const int runs = Draw(random, kRanks);  // The rank that surely gives up.
  std::vector<int> stopped;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != runs && (stopped.empty() || Draw(random, 2) == 0)) stopped.push_back(rank);
  }
  for (int rank : stopped) signal(rank, SIGSTOP);
  const auto check = [&](int rank) {
    const std::string output = workers[rank]->Output(kTestTimeout);
    EXPECT_THAT(output, Not(HasSubstr("WRONG")));
    EXPECT_THAT(output, Not(HasSubstr("not ended")));
    EXPECT_THAT(output, HasSubstr("rank ")) << "nobody is named";
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    if (std::find(stopped.begin(), stopped.end(), rank) == stopped.end()) check(rank);
  }
  for (int rank : stopped) signal(rank, SIGCONT);
  for (int rank : stopped) check(rank);
}

TEST(ShmStopStormTest, WhatSucceedsIsRightWhoeverIsStoppedAndGoesOn) {
  const ScratchFolder folder;
  std::printf("--rounds=%d --seed=%u\n", rounds, seed);
  std::mt19937 random(seed);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    RunRound(absl::StrCat(folder.path(), "/", round), random);
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleMock(&argc, argv);
  syncline::ReadArguments(argc, argv, {{"rounds", &syncline::rounds}, {"seed", &syncline::seed}});
  return RUN_ALL_TESTS();
}
