#include "backends/hierarchical/rail_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "backends/common/socket_streams.h"
#include "core/base/unique_fd.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline LongDeadline() { return Deadline(absl::Seconds(60)); }

// Runs the members of a rail as threads. Each has `streams` to each other, at one address after
// another of `more`.
class Rail {
 public:
  explicit Rail(int size, int streams = 1, const std::vector<std::string>& more = {})
      : streams_(streams) {
    for (int own = 0; own < size; ++own) {
      listeners_.push_back(backends::Listener::Open("127.0.0.1", more).value());
      members_.push_back({10 + own, absl::StrCat("member ", own), listeners_.back()->endpoint()});
    }
  }

  const std::vector<RailSockets::Member>& members() const { return members_; }

  absl::StatusOr<std::unique_ptr<RailSockets>> Connect(int own, const Deadline& deadline) {
    return RailSockets::Connect(*listeners_[own], members_, own, streams_, deadline,
                                [this] { return check_; });
  }

  void Run(const std::function<void(RailSockets& sockets, int own)>& member) {
    std::vector<std::thread> threads;
    for (int own = 0; own < static_cast<int>(members_.size()); ++own) {
      threads.emplace_back([this, own, &member] {
        auto sockets = Connect(own, LongDeadline());
        ASSERT_TRUE(sockets.ok()) << sockets.status();
        member(**sockets, own);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // What joining members hear of the others.
  void set_check(const absl::Status& check) { check_ = check; }

 private:
  const int streams_;
  absl::Status check_;
  std::vector<std::unique_ptr<backends::Listener>> listeners_;
  std::vector<RailSockets::Member> members_;
};

// What member `from` sends to member `to`.
std::string Text(int from, int to, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + from * 31 + to * 17);
  return text;
}

// By members, and streams.
class RailSocketsTest : public testing::TestWithParam<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Sizes, RailSocketsTest,
                         testing::Combine(testing::Values(2, 3, 7), testing::Values(1, 2, 5)));

TEST_P(RailSocketsTest, AllSendToAllInBothDirectionsAtOnceWhateverTheLengths) {
  const auto [size, streams] = GetParam();
  Rail(size, streams, {"127.0.0.2"}).Run([size = size](RailSockets& sockets, int own) {
    // The second ends a stripe, the third begins in one and ends in the next.
    for (size_t bytes : {0, 131072, 131073, 1, 4099, 3 << 20}) {
      std::vector<std::string> sent, received(size, std::string(2 * bytes, '\0'));
      for (int peer = 0; peer < size; ++peer) sent.push_back(Text(own, peer, bytes));
      for (int peer = 0; peer < size; ++peer) {
        if (peer == own) continue;
        for (int i = 0; i < 2; ++i) {
          sockets.Send(peer, sent[peer].data(), bytes);
          sockets.Receive(peer, &received[peer][i * bytes], bytes);
        }
      }
      ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
      for (int peer = 0; peer < size; ++peer) {
        if (peer == own) continue;
        const std::string want = Text(peer, own, bytes);
        EXPECT_TRUE(received[peer] == want + want) << bytes << " bytes";
      }
    }
  });
}

TEST(RailSocketsTest, AWaitForTheFirstBytesDoesNotNeedTheRest) {
  Rail(2).Run([](RailSockets& sockets, int own) {
    char first = 0, second = 0;
    sockets.Receive(1 - own, &first, 1);
    const uint64_t first_bytes = sockets.bytes_to_receive(1 - own);
    sockets.Receive(1 - own, &second, 1);
    sockets.Send(1 - own, "a", 1);
    ASSERT_TRUE(sockets.AwaitReceived(1 - own, first_bytes, LongDeadline()).ok());
    EXPECT_EQ(first, 'a');
    sockets.Send(1 - own, "b", 1);
    ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
    EXPECT_EQ(second, 'b');
  });
}

// As of a process that was stopped meanwhile.
TEST(RailSocketsTest, AWaitForWhatHasComeSucceedsAfterItsDeadline) {
  Rail(2).Run([](RailSockets& sockets, int own) {
    char byte = 0;
    sockets.Receive(1 - own, &byte, 1);
    if (own == 0) {
      sockets.Send(1, "a", 1);
    } else {
      absl::SleepFor(absl::Milliseconds(200));
      const absl::Status status =
          sockets.AwaitReceived(0, sockets.bytes_to_receive(0), Deadline(absl::ZeroDuration()));
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(byte, 'a');
      sockets.Send(0, "b", 1);
    }
    ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
  });
}

TEST(RailSocketsTest, BytesOfALaterStripeDoNotCountBeforeThoseOfAnEarlierOne) {
  constexpr size_t kStripe = backends::SocketStreams::kStripeBytes, kBytes = 5 * kStripe + 17;
  Rail(2, 3).Run([](RailSockets& sockets, int own) {
    const std::string sent = Text(0, 1, kBytes);
    std::string received(kBytes, '\0');
    char go = 0;
    for (int round = 0; round < 20; ++round) {
      received.assign(kBytes, '\0');
      if (own == 0) {
        sockets.Send(1, sent.data(), kBytes);
        sockets.Receive(1, &go, 1);
        ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
        continue;
      }
      const uint64_t before = sockets.bytes_to_receive(0);
      sockets.Receive(0, received.data(), kBytes);
      for (size_t part = 0; part < kBytes; part += kStripe / 3) {
        ASSERT_TRUE(sockets.AwaitReceived(0, before + part, LongDeadline()).ok());
        EXPECT_TRUE(received.compare(0, part, sent, 0, part) == 0) << part;
      }
      ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
      EXPECT_TRUE(received == sent);
      sockets.Send(0, &go, 1);
      ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
    }
  });
}

TEST(RailSocketsTest, TheEndOfOneOfSeveralStreamsEndsTheWait) {
  Rail(2, 3).Run([](RailSockets& sockets, int own) {
    if (own == 1) return;
    std::string received(4 << 20, '\0');
    sockets.Receive(1, received.data(), received.size());
    EXPECT_EQ(KindOf(sockets.AwaitAll(LongDeadline())), ErrorKind::kNetwork);
    EXPECT_THAT(RanksOf(sockets.ended()), ElementsAre(11));
  });
}

TEST(RailSocketsTest, AWaitEndsAtItsDeadline) {
  Rail(2).Run([](RailSockets& sockets, int own) {
    char byte;
    sockets.Receive(1 - own, &byte, 1);
    if (own == 1)
      return sockets.AwaitAll(LongDeadline()).IgnoreError();  // Until the other has gone.
    const absl::Status status = sockets.AwaitAll(Deadline(absl::Milliseconds(50)));
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(status.message(), HasSubstr("50ms"));
  });
}

TEST(RailSocketsTest, AbortEndsTheWaitsOfBothSides) {
  Rail(2).Run([](RailSockets& sockets, int own) {
    char byte;
    sockets.Receive(1 - own, &byte, 1);
    std::thread aborter;
    if (own == 0) aborter = std::thread([&] { sockets.Abort(); });
    const absl::Status status = sockets.AwaitAll(LongDeadline());
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(status.message(), HasSubstr(own == 0 ? "the connections were closed" : "member 0"));
    if (aborter.joinable()) aborter.join();
  });
}

// Another rank of the node may have given up a moment before.
TEST(RailSocketsTest, AWaitThatIsAbortedTellsWhomItWaitedFor) {
  Rail(3).Run([](RailSockets& sockets, int own) {
    char byte;
    if (own != 0) {
      if (own == 1) sockets.Send(0, "a", 1);
      sockets.Receive(0, &byte, 1);
      return sockets.AwaitAll(LongDeadline()).IgnoreError();  // Until the other has gone.
    }
    EXPECT_TRUE(sockets.late().ok());
    sockets.Receive(1, &byte, 1);
    ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
    sockets.Receive(2, &byte, 1);
    std::thread aborter([&] { sockets.Abort(); });
    EXPECT_EQ(KindOf(sockets.AwaitAll(LongDeadline())), ErrorKind::kNetwork);
    aborter.join();
    EXPECT_THAT(RanksOf(sockets.late()), ElementsAre(12)) << sockets.late();
  });
}

TEST(RailSocketsTest, WhoDoesNotComeIsNamed) {
  Rail rail(3);
  const absl::Status status = rail.Connect(0, Deadline(absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(status.message(), HasSubstr("member 1, member 2 did not connect within 50ms"));
}

TEST(RailSocketsTest, TheEndOfAConnectionNamesTheRankAtItsOtherSide) {
  Rail(2).Run([](RailSockets& sockets, int own) {
    EXPECT_TRUE(sockets.ended().ok());
    if (own == 1) return;  // And ends with it.
    char byte;
    sockets.Receive(1, &byte, 1);
    EXPECT_EQ(KindOf(sockets.AwaitAll(LongDeadline())), ErrorKind::kNetwork);
    EXPECT_THAT(RanksOf(sockets.ended()), ElementsAre(11));
    EXPECT_THAT(std::string(sockets.ended().message()), HasSubstr("member 1"));
  });
}

TEST(RailSocketsTest, NewsOfADeathEndTheWaitForTheOthers) {
  Rail rail(3);
  rail.set_check(NetworkError("member 2 has died"));
  const Deadline quick(absl::Seconds(30));
  for (const int own : {0, 1}) {  // One waits for callers, one for an answer.
    EXPECT_THAT(std::string(rail.Connect(own, LongDeadline()).status().message()),
                HasSubstr("member 2 has died"));
  }
  EXPECT_FALSE(quick.Expired());
}

// Connects in place of a member, and sends `says`.
int Intrude(const std::string& endpoint, const std::string& says) {
  const std::vector<std::string> words = absl::StrSplit(endpoint, ' ');
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(words[1], &port));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, words[0].c_str(), &address.sin_addr);
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(stranger, says.data(), says.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(says.size()));
  return stranger;
}

TEST(RailSocketsTest, StrangersWhoDoNotKnowTheSecretAreSentAway) {
  Rail rail(2);
  const int liar = Intrude(rail.members()[0].endpoint, std::string(36, 'x'));
  const int mute = Intrude(rail.members()[0].endpoint, "");
  rail.Run([](RailSockets& sockets, int own) {
    char byte = 0;
    sockets.Send(1 - own, "a", 1);
    sockets.Receive(1 - own, &byte, 1);
    ASSERT_TRUE(sockets.AwaitAll(LongDeadline()).ok());
    EXPECT_EQ(byte, 'a');
  });
  char byte;
  EXPECT_LE(recv(liar, &byte, 1, 0), 0);
  EXPECT_LE(recv(mute, &byte, 1, 0), 0);
  close(liar);
  close(mute);
}

TEST(RailSocketsTest, StrangersWhoSayNothingDoNotHoldUpTheMembers) {
  Rail rail(2);
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) strangers.emplace_back(Intrude(rail.members()[0].endpoint, ""));
  const Deadline quick(absl::Seconds(30));
  rail.Run([](RailSockets&, int) {});
  EXPECT_FALSE(quick.Expired());
}

TEST(RailSocketsTest, StrangersInARowDoNotStretchTheDeadline) {
  Rail rail(2);
  std::atomic<bool> is_over{false};
  std::thread strangers([&] {
    while (!is_over) base::UniqueFd(Intrude(rail.members()[0].endpoint, ""));
  });
  const Deadline deadline = LongDeadline();
  EXPECT_EQ(KindOf(rail.Connect(0, Deadline(absl::Milliseconds(50))).status()),
            ErrorKind::kTimeout);
  EXPECT_FALSE(deadline.Expired());
  is_over = true;
  strangers.join();
}

TEST(RailSocketsTest, ALackOfDescriptorsEndsTheWaitAtOnceAndSaysWhatToRaise) {
  Rail rail(2);
  const base::UniqueFd stranger(Intrude(rail.members()[0].endpoint, ""));
  absl::Notification is_over;
  absl::Status status;
  auto no_descriptors = std::make_unique<NoDescriptors>();
  std::thread member([&] {
    status = rail.Connect(0, LongDeadline()).status();
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  no_descriptors = nullptr;
  if (!is_over.HasBeenNotified()) rail.Connect(1, LongDeadline()).IgnoreError();
  member.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise the limit (ulimit -n)"));
}

}  // namespace
}  // namespace syncline::hierarchical
