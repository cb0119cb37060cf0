// Backend tcp, and auto on two hosts, over connections that proxies slow down, stall, cut off,
// reset and change, or of which they lose what one side sends or end one side alone. With
// encryption too: this is linked into a test for which SYNCLINE_TLS is always set. Arguments:
// --rounds=N and --seed=N.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/support/arguments.h"
#include "tests/support/backend_config.h"
#include "tests/support/proxy.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

int rounds = 20;
uint32_t first_seed = 1;

constexpr int kRanks = 3;
constexpr absl::Duration kTimeout = absl::Milliseconds(1500);
// To hear why others have failed, on a busy machine.
constexpr absl::Duration kGrace = absl::Seconds(10);

bool IsEncrypted() { return base::GetEnv("SYNCLINE_TLS").has_value(); }

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank) {
  return BackendRegistry::Make("tcp", OnLoopback(std::move(store), rank, kRanks));
}

// Ranks 0 and 2 take each other for those of one host, and share memory.
absl::StatusOr<std::shared_ptr<Backend>> JoinOnHosts(std::shared_ptr<Store> store, int rank) {
  auto on_host = std::make_shared<StoreOnHost>(std::move(store), absl::StrCat("host_", rank % 2));
  return BackendRegistry::Make("auto", OnLoopback(std::move(on_host), rank, kRanks));
}
using JoinFunction = decltype(&Join);

// On how many ranks an error must name ranks.
enum class Naming { kOnEvery, kOnOne };

// One call of `choice`, with its results checked.
absl::Status Call(Backend& backend, int rank, uint32_t choice, uint64_t sequence,
                  absl::Duration timeout) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(timeout);
  const size_t counts[] = {1, 1000, 50'000, 1'000'000};
  const size_t count = counts[choice / 4 % 4];
  std::vector<int32_t> values(count, rank + 1), received(kRanks * count);
  std::vector<Tensor> parts;
  const Tensor all = Tensor::Of(received);
  for (int r = 0; r < kRanks; ++r) parts.push_back(all.Slice(r * count, count));
  const int next = (rank + 1) % kRanks, last = (rank + kRanks - 1) % kRanks;
  const auto run = [&](const Collective& call) {
    return backend.RunAndWait(call, context).status();
  };
  switch (choice % 4) {
    case 0:
      SYNCLINE_RETURN_IF_ERROR(run(Collective::AllReduce(Tensor::Of(values), ReduceOp::kSum)));
      EXPECT_EQ(values, std::vector<int32_t>(count, 6));
      return absl::OkStatus();
    case 1:
      SYNCLINE_RETURN_IF_ERROR(run(Collective::AllGather(parts, Tensor::Of(values))));
      for (int r = 0; r < kRanks; ++r) EXPECT_EQ(received[r * count + count / 2], r + 1);
      return absl::OkStatus();
    case 2:
      if (rank == 0) SYNCLINE_RETURN_IF_ERROR(run(Collective::Send(Tensor::Of(values), next)));
      SYNCLINE_RETURN_IF_ERROR(run(Collective::Recv(parts[0], last)));
      EXPECT_EQ(received[count - 1], last + 1);
      return rank == 0 ? absl::OkStatus() : run(Collective::Send(Tensor::Of(values), next));
    default:
      return run(Collective::Barrier());
  }
}

TEST(TcpProxyTest, ResultsAreRightHoweverSlowlyAndInWhatPiecesTheyCome) {
  for (const auto& [piece, delay] : {std::pair(1021, 0), std::pair(16'384, 200)}) {
    Proxy proxy(piece, delay);
    const auto store = std::make_shared<ProxiedStore>(std::make_shared<HashStore>(), proxy);
    for (const absl::Status& status : RunRanks(kRanks, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank));
           for (uint32_t choice = 0; choice < 12; ++choice) {
             SYNCLINE_RETURN_IF_ERROR(Call(*backend, rank, choice, choice, absl::Minutes(1)));
           }
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// Makes calls until one fails. Every rank's must, soon after the deadline at the latest, and name
// ranks.
void RunRound(const Proxy::Fault& fault, uint32_t seed, JoinFunction join, Naming naming) {
  Proxy proxy;
  const auto store = std::make_shared<ProxiedStore>(std::make_shared<HashStore>(), proxy);
  Countdown joined(kRanks), made(1);
  const auto statuses = RunRanks(kRanks, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, join(store, rank));
    joined.StepAndWait();
    if (rank == 0) {
      proxy.Make(fault);
      made.Step();
    }
    made.Wait();
    std::mt19937 random(seed);
    absl::Time begin = absl::Now();
    absl::Status status;
    for (int call = 0; call < 5000 && status.ok(); ++call) {
      begin = absl::Now();
      status = Call(*backend, rank, static_cast<uint32_t>(random()), call, kTimeout);
    }
    EXPECT_LT(absl::Now() - begin, kTimeout * 3 + kGrace) << status;
    return status;
  });
  EXPECT_TRUE(proxy.has_happened());
  int naming_ranks = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const absl::Status& status = statuses[rank];
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const ErrorKind kind = KindOf(status);
    EXPECT_THAT(kind, AnyOf(ErrorKind::kNetwork, ErrorKind::kTimeout, ErrorKind::kMismatch))
        << status;
    naming_ranks += RanksOf(status).empty() ? 0 : 1;
    if (naming == Naming::kOnOne) continue;
    EXPECT_FALSE(RanksOf(status).empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank ")) << status;
  }
  EXPECT_GE(naming_ranks, 1);
}

void RunRounds(JoinFunction join, int most_skipped, Naming naming) {
  using Kind = Proxy::Fault::Kind;
  // What changes bytes is an attack that encryption alone withstands.
  std::vector<Kind> kinds = {Kind::kStall,    Kind::kStallOneWay, Kind::kLoseOneWay,
                             Kind::kHalfOpen, Kind::kEnd,         Kind::kReset};
  if (IsEncrypted()) kinds.push_back(Kind::kChange);
  std::printf("--rounds=%d --seed=%u\n", rounds, first_seed);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    const uint32_t seed = first_seed + static_cast<uint32_t>(round);
    std::mt19937 random(seed);
    Proxy::Fault fault;
    fault.kind = kinds[random() % kinds.size()];
    fault.bytes = static_cast<int64_t>(random() % (1 << (4 + random() % 18)));
    fault.skip = static_cast<int>(random() % (most_skipped + 1));
    // With several, a fault is that of one of them.
    setenv("SYNCLINE_TCP_STREAMS", seed % 2 == 0 ? "1" : "3", 1);
    SCOPED_TRACE(absl::StrCat("--seed=", seed, ", fault ", static_cast<int>(fault.kind), " after ",
                              fault.bytes, " bytes, ", fault.skip, " skipped"));
    RunRound(fault, seed, join, naming);
  }
}

TEST(TcpProxyTest, FaultsAreErrorsOnEveryRankThatNameRanks) {
  RunRounds(&Join, 3, Naming::kOnEvery);
}

// Fewer connections carry anything: those between ranks of one host do not. A rank that waits in
// shared memory, and whose time is up a moment before that of the others, ends the group before
// these say whom they wait for, and knows of nobody itself.
TEST(AutoProxyTest, FaultsBetweenHostsAreErrorsOnEveryRank) {
  RunRounds(&JoinOnHosts, 1, Naming::kOnOne);
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  syncline::ReadArguments(argc, argv,
                          {{"rounds", &syncline::rounds}, {"seed", &syncline::first_seed}});
  return RUN_ALL_TESTS();
}
