#include "backends/auto/wires.h"

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
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

Deadline Patience() { return Deadline(absl::Seconds(60)); }

// Runs the members of a lane as threads.
class Lane {
 public:
  explicit Lane(int size) {
    for (int place = 0; place < size; ++place) {
      doors_.push_back(WireDoor::Open("127.0.0.1").value());
      members_.push_back({absl::StrCat("member ", place), doors_.back()->ticket()});
    }
  }

  const std::vector<Wires::Member>& members() const { return members_; }

  absl::StatusOr<std::unique_ptr<Wires>> Connect(int place, const Deadline& deadline) {
    return Wires::Connect(*doors_[place], members_, place, deadline);
  }

  void Run(const std::function<void(Wires& wires, int place)>& member) {
    std::vector<std::thread> threads;
    for (int place = 0; place < static_cast<int>(members_.size()); ++place) {
      threads.emplace_back([this, place, &member] {
        auto wires = Connect(place, Patience());
        ASSERT_TRUE(wires.ok()) << wires.status();
        member(**wires, place);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<WireDoor>> doors_;
  std::vector<Wires::Member> members_;
};

// What member `from` sends to member `to`.
std::string Text(int from, int to, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + from * 31 + to * 17);
  return text;
}

class WiresTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, WiresTest, testing::Values(2, 3, 7));

TEST_P(WiresTest, AllSendToAllInBothDirectionsAtOnceWhateverTheLengths) {
  const int size = GetParam();
  Lane(size).Run([size](Wires& wires, int own) {
    for (size_t bytes : {0, 1, 4099, 3 << 20}) {
      std::vector<std::string> sent, received(size, std::string(2 * bytes, '\0'));
      for (int peer = 0; peer < size; ++peer) sent.push_back(Text(own, peer, bytes));
      for (int peer = 0; peer < size; ++peer) {
        if (peer == own) continue;
        for (int i = 0; i < 2; ++i) {
          wires.Send(peer, sent[peer].data(), bytes);
          wires.Receive(peer, &received[peer][i * bytes], bytes);
        }
      }
      ASSERT_TRUE(wires.AwaitAll(Patience()).ok());
      for (int peer = 0; peer < size; ++peer) {
        if (peer == own) continue;
        const std::string want = Text(peer, own, bytes);
        EXPECT_TRUE(received[peer] == want + want) << bytes << " bytes";
      }
    }
  });
}

TEST(WiresTest, AWaitForTheFirstBytesDoesNotNeedTheRest) {
  Lane(2).Run([](Wires& wires, int own) {
    char first = 0, second = 0;
    wires.Receive(1 - own, &first, 1);
    const uint64_t mark = wires.to_receive(1 - own);
    wires.Receive(1 - own, &second, 1);
    wires.Send(1 - own, "a", 1);
    ASSERT_TRUE(wires.AwaitReceived(1 - own, mark, Patience()).ok());
    EXPECT_EQ(first, 'a');
    wires.Send(1 - own, "b", 1);
    ASSERT_TRUE(wires.AwaitAll(Patience()).ok());
    EXPECT_EQ(second, 'b');
  });
}

TEST(WiresTest, AWaitEndsAtItsDeadline) {
  Lane(2).Run([](Wires& wires, int own) {
    char byte;
    wires.Receive(1 - own, &byte, 1);
    if (own == 1) return wires.AwaitAll(Patience()).IgnoreError();  // Until the other has gone.
    const absl::Status status = wires.AwaitAll(Deadline(absl::Milliseconds(50)));
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(status.message(), HasSubstr("50ms"));
  });
}

TEST(WiresTest, AbortEndsTheWaitsOfBothSides) {
  Lane(2).Run([](Wires& wires, int own) {
    char byte;
    wires.Receive(1 - own, &byte, 1);
    std::thread aborter;
    if (own == 0) aborter = std::thread([&] { wires.Abort(); });
    const absl::Status status = wires.AwaitAll(Patience());
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(status.message(), HasSubstr(own == 0 ? "the connections were closed" : "member 0"));
    if (aborter.joinable()) aborter.join();
  });
}

TEST(WiresTest, WhoDoesNotComeIsNamed) {
  Lane lane(3);
  const absl::Status status = lane.Connect(0, Deadline(absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(status.message(), HasSubstr("member 1, member 2 did not connect within 50ms"));
}

// Says what it says, in place of a member.
int Intrude(const std::string& ticket, const std::string& says) {
  const std::vector<std::string> words = absl::StrSplit(ticket, ' ');
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

TEST(WiresTest, StrangersWhoDoNotKnowTheSecretAreSentAway) {
  Lane lane(2);
  const int liar = Intrude(lane.members()[0].ticket, std::string(36, 'x'));
  const int mute = Intrude(lane.members()[0].ticket, "");
  lane.Run([](Wires& wires, int own) {
    char byte = 0;
    wires.Send(1 - own, "a", 1);
    wires.Receive(1 - own, &byte, 1);
    ASSERT_TRUE(wires.AwaitAll(Patience()).ok());
    EXPECT_EQ(byte, 'a');
  });
  char byte;
  EXPECT_LE(recv(liar, &byte, 1, 0), 0);
  EXPECT_LE(recv(mute, &byte, 1, 0), 0);
  close(liar);
  close(mute);
}

TEST(WiresTest, StrangersWhoSayNothingDoNotHoldUpTheMembers) {
  Lane lane(2);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) strangers.emplace_back(Intrude(lane.members()[0].ticket, ""));
  const Deadline quick(absl::Seconds(30));
  lane.Run([](Wires&, int) {});
  EXPECT_FALSE(quick.Expired());
}

TEST(WiresTest, StrangersInARowDoNotStretchTheDeadline) {
  Lane lane(2);
  std::atomic<bool> is_over{false};
  std::thread strangers([&] {
    while (!is_over) UniqueFd(Intrude(lane.members()[0].ticket, ""));
  });
  const Deadline deadline = Patience();
  EXPECT_EQ(KindOf(lane.Connect(0, Deadline(absl::Milliseconds(50))).status()),
            ErrorKind::kTimeout);
  EXPECT_FALSE(deadline.Expired());
  is_over = true;
  strangers.join();
}

TEST(WiresTest, ALackOfDescriptorsEndsTheWaitAtOnceAndSaysWhatToRaise) {
  Lane lane(2);
  const UniqueFd stranger(Intrude(lane.members()[0].ticket, ""));
  absl::Notification is_over;
  absl::Status status;
  auto no_descriptors = std::make_unique<NoDescriptors>();
  std::thread member([&] {
    status = lane.Connect(0, Patience()).status();
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  no_descriptors = nullptr;
  if (!is_over.HasBeenNotified()) lane.Connect(1, Patience()).IgnoreError();
  member.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise the limit (ulimit -n)"));
}

}  // namespace
}  // namespace syncline
