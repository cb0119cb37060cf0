// Strangers on the ports at which ranks of backend tcp wait for each other, and a rank that sends
// what is no message.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/strangers.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

using ::testing::Contains;

constexpr int kRanks = 2;
constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank) {
  return BackendRegistry::Make("tcp", OnLoopback(std::move(store), rank, kRanks, kTimeout));
}

CallContext Within(uint64_t sequence, absl::Duration timeout = kTimeout) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(timeout);
  return context;
}

// Connects to each port at which ranks listen, while they join.
TEST(TcpStrangersTest, RanksFindEachOtherWhoeverElseConnects) {
  std::vector<base::UniqueFd> strangers;
  for (const Deadline deadline(kTimeout); strangers.size() < 300 && !deadline.Expired();) {
    const auto store = std::make_shared<HashStore>();
    absl::StatusOr<std::shared_ptr<Backend>> ranks[] = {absl::UnavailableError("not made"),
                                                        absl::UnavailableError("not made")};
    std::atomic<int> joined{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ranks[rank] = Join(store, rank);
        ++joined;
      });
    }
    while (joined < kRanks) {
      for (const int port : ListeningPorts()) {
        for (const std::string& text :
             {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"),
              std::string(32, '0') + std::string(4, '\1'), std::string(100'000, 'x')}) {
          base::UniqueFd stranger = TryToConnect(port);
          if (!stranger.valid()) continue;
          SendText(stranger, text);
          strangers.push_back(std::move(stranger));
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(ranks[0].ok() && ranks[1].ok()) << ranks[0].status() << ranks[1].status();
    absl::Status barrier;
    std::thread other(
        [&] { barrier = (*ranks[0])->RunAndWait(Collective::Barrier(), Within(0)).status(); });
    EXPECT_TRUE((*ranks[1])->RunAndWait(Collective::Barrier(), Within(0)).ok());
    other.join();
    EXPECT_TRUE(barrier.ok()) << barrier;
  }
  EXPECT_GE(strangers.size(), 300u);
}

// Both ends of each connection are in this process, so the test can write to that of rank 1 what
// rank 1 never would.
TEST(TcpStrangersTest, WhatIsNoMessageEndsTheGroupWithTheNameOfItsSender) {
  for (const std::string& garbage :
       {std::string(4096, 'x'), std::string(64, '\0'), std::string(56, '\xff')}) {
    const auto store = std::make_shared<HashStore>();
    const auto before = OwnSockets();
    absl::StatusOr<std::shared_ptr<Backend>> first = absl::UnavailableError("not made");
    std::thread thread([&] { first = Join(store, 0); });
    const auto second = Join(store, 1);
    thread.join();
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    // From both ends of each connection, so that it reaches rank 0 and rank 1 alike.
    EXPECT_GE(WriteToNewSockets(before, garbage), 4);
    const Tensor tensor = Tensor::Zeros(DType::kInt32, {10});
    const absl::Status received =
        (*first)->RunAndWait(Collective::Recv(tensor, 1), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(received.ok());
    EXPECT_THAT(RanksOf(received), Contains(1)) << received;
    const absl::Status later =
        (*second)->RunAndWait(Collective::Barrier(), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(later.ok());
    EXPECT_FALSE(RanksOf(later).empty()) << later;
  }
}

}  // namespace
}  // namespace syncline
