// Backend gloo among strangers who connect to its ports, and with ranks that send what they should
// not.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/gloo/periodic_wakeup.h"
#include "backends/gloo/slots.h"
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
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank, int size,
                                              MismatchCheck check = MismatchCheck::kOn) {
  BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
  config.mismatch_check = check;
  return BackendRegistry::Make("gloo", config);
}

CallContext Within(uint64_t sequence, absl::Duration timeout = kTimeout) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(timeout);
  return context;
}

// A message of Gloo's protocol: six words, of which the last two are not used here.
std::string GlooMessage(uint64_t opcode, uint64_t slot, uint64_t length) {
  const uint64_t words[6] = {sizeof(words) + length, opcode, slot, 0, length, 0};
  return std::string(reinterpret_cast<const char*>(words), sizeof(words));
}

// Gloo's opcodes.
constexpr uint64_t kSendBuffer = 0, kSendUnboundBuffer = 1;

// A connection for which the listener's queue had no room, and whose listener is closed by now,
// only the kernel of the caller knows: it hears of the end when it sends something.
bool IsClosedByPeer(const base::UniqueFd& socket) {
  for (const Deadline deadline(kTimeout); !deadline.Expired();) {
    pollfd entry = {socket.get(), POLLIN, 0};
    char byte = 'x';
    if (poll(&entry, 1, 50) == 1) return recv(socket.get(), &byte, 1, MSG_DONTWAIT) <= 0;
    send(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  return false;
}

TEST(GlooStrangersTest, RanksFindEachOtherWhoeverElseConnectsAndCloseTheDoorThen) {
  // Among them the numbers of a peer's connection that Gloo would give by itself.
  std::vector<std::string> texts = {"", "GET / HTTP/1.1\r\n\r\n", std::string(100'000, 'x')};
  for (const int64_t number : {0, 1, 2}) {
    texts.emplace_back(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  // Starts the thread that all groups of the process share, and which stays.
  const auto nothing = [] {};
  {
    const gloo_backend::PeriodicWakeup start(nothing);
  }
  size_t total = 0;
  for (const Deadline deadline(kTimeout); total < 200 && !deadline.Expired();) {
    const int64_t possessions = CountPossessions();
    std::vector<base::UniqueFd> strangers;
    const auto store = std::make_shared<HashStore>();
    std::atomic<int> joined{0};
    std::thread crowd([&] {
      while (joined < 2) {
        for (const int port : ListeningPorts()) {
          for (const std::string& text : texts) {
            base::UniqueFd stranger = TryToConnect(port);
            if (!stranger.valid()) continue;
            SendText(stranger, text);
            strangers.push_back(std::move(stranger));
          }
        }
      }
    });
    std::atomic<int> ports{-1};
    Countdown met(2);
    const std::vector<absl::Status> outcomes = RunRanks(2, [&](int rank) -> absl::Status {
      const auto backend = Join(store, rank, 2);
      ++joined;
      if (!backend.ok()) return backend.status();
      met.StepAndWait();
      if (rank == 0) ports = ListeningPorts().size();
      return (*backend)->RunAndWait(Collective::Barrier(), Within(0)).status();
    });
    crowd.join();
    for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
    EXPECT_EQ(ports, 0);
    for (const base::UniqueFd& stranger : strangers) EXPECT_TRUE(IsClosedByPeer(stranger));
    total += strangers.size();
    strangers.clear();
    EXPECT_LE(CountPossessions(possessions), possessions);
  }
  EXPECT_GE(total, 200u);
}

// Both ends of each connection are in this process, so the test can write to that of rank 1 what
// rank 1 never would.
TEST(GlooStrangersTest, WhatIsNoMessageEndsTheGroupAndNoProcess) {
  for (const std::string& garbage :
       {std::string(4096, 'x'), std::string(64, '\0'), std::string(56, '\xff'),
        GlooMessage(kSendBuffer, 7, 100), GlooMessage(kSendUnboundBuffer, 7, 100),
        // A message of leave, longer than any.
        GlooMessage(kSendUnboundBuffer, gloo_backend::kWatchSlot, uint64_t{1} << 40),
        GlooMessage(kSendUnboundBuffer, gloo_backend::kWatchSlot, 1)}) {
    const auto store = std::make_shared<HashStore>();
    const auto before = OwnSockets();
    absl::StatusOr<std::shared_ptr<Backend>> first = absl::UnavailableError("not made");
    std::thread thread([&] { first = Join(store, 0, 2); });
    const auto second = Join(store, 1, 2);
    thread.join();
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    // To rank 0, to rank 1, or to both: the first that reads it closes the connection.
    EXPECT_GE(WriteToNewSockets(before, garbage), 1);
    const Tensor tensor = Tensor::Zeros(DType::kInt32, {10});
    const absl::Status received =
        (*first)->RunAndWait(Collective::Recv(tensor, 1), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(received.ok());
    EXPECT_NE(KindOf(received), ErrorKind::kTimeout) << received;
    EXPECT_THAT(std::string(received.message()), HasSubstr("rank 1")) << received;
    const absl::Status later =
        (*second)->RunAndWait(Collective::Barrier(), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(later.ok());
  }
}

// SYNCLINE_DEBUG=off: nobody compares the calls before data moves.
TEST(GlooStrangersTest, WithoutAComparisonMessagesOfOtherSizesAreErrorsOnAllRanks) {
  for (const int size : {2, 3}) {
    for (const int64_t count : {3, 100'000}) {
      SCOPED_TRACE(absl::StrCat(size, " ranks, ", count));
      const auto store = std::make_shared<HashStore>();
      std::vector<absl::Status> outcomes(size);
      Countdown ended(size);
      RunRanks(size, [&](int rank) -> absl::Status {
        const auto backend = Join(store, rank, size, MismatchCheck::kOff);
        if (backend.ok()) {
          const Tensor tensor = Tensor::Zeros(DType::kInt32, {rank == 1 ? 2 * count : count});
          outcomes[rank] =
              (*backend)
                  ->RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), Within(1))
                  .status();
        } else {
          outcomes[rank] = backend.status();
        }
        ended.StepAndWait();
        return absl::OkStatus();
      });
      for (const absl::Status& outcome : outcomes) {
        EXPECT_EQ(KindOf(outcome), ErrorKind::kMismatch) << outcome;
        EXPECT_THAT(std::string(outcome.message()), HasSubstr("bytes where")) << outcome;
        EXPECT_FALSE(RanksOf(outcome).empty()) << outcome;
      }
    }
  }
}

// Variables that other users of Gloo set for it, such as torch's.
TEST(GlooStrangersTest, GloosOwnSwitchesChangeNothing) {
  setenv("GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "1", 1);
  const auto store = std::make_shared<HashStore>();
  const std::vector<absl::Status> outcomes =
      RunRanks(3, [&](int rank) { return Join(store, rank, 3).status(); });
  unsetenv("GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER");
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

}  // namespace
}  // namespace syncline
