#include "backends/shm/handover.h"

#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/sockets.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/tensor/segment.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Deadline Soon() { return Deadline(absl::Milliseconds(300)); }
const Deadline Later() { return Deadline(absl::Seconds(30)); }

// Connects as one who knows the name but not the secret could, and says nothing.
absl::StatusOr<UniqueFd> ConnectAsStranger(absl::string_view ticket) {
  const absl::string_view name = ticket.substr(0, ticket.find(' '));
  SocketAddress address;
  address.storage.ss_family = AF_UNIX;
  std::memcpy(reinterpret_cast<sockaddr_un*>(address.get())->sun_path + 1, name.data(),
              name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return Connect(address, SOCK_SEQPACKET, Later());
}

class HandoverTest : public testing::Test {
 protected:
  std::unique_ptr<HandoverPoint> point_ = HandoverPoint::Open().value();
  const Segment segment_ = Segment::Create(4096).value();
};

TEST_F(HandoverTest, EveryRankGetsTheSameMemory) {
  std::thread host([&] { EXPECT_TRUE(point_->Serve(segment_.descriptor(), 3, Later()).ok()); });
  for (int rank : {2, 1}) {
    const auto descriptor = ReceiveDescriptor(point_->ticket(), rank, Later());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
    const Segment theirs = Segment::Map(dup(descriptor->get()), 4096).value();
    segment_.data()[0] = static_cast<char>(rank);
    EXPECT_EQ(theirs.data()[0], rank);
  }
  host.join();
}

TEST_F(HandoverTest, RanksThatDoNotComeAreNamed) {
  std::thread comes([&] {
    const auto descriptor = ReceiveDescriptor(point_->ticket(), 2, Later());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  });
  const absl::Status status = point_->Serve(segment_.descriptor(), 4, Soon());
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ranks 1 and 3 of 4 have not come"), HasSubstr("300ms")));
  comes.join();
}

TEST_F(HandoverTest, WhoDoesNotKnowTheSecretGetsNothing) {
  std::string ticket = point_->ticket();
  ticket.back() = ticket.back() == '0' ? '1' : '0';
  std::thread host([&] { EXPECT_FALSE(point_->Serve(segment_.descriptor(), 2, Soon()).ok()); });
  const auto descriptor = ReceiveDescriptor(ticket, 1, Later());
  EXPECT_EQ(KindOf(descriptor.status()), ErrorKind::kNetwork) << descriptor.status();
  host.join();
}

TEST_F(HandoverTest, AFullBacklogDoesNotKeepARankPastItsDeadline) {
  ASSERT_EQ(listen(point_->socket(), /*backlog=*/0), 0);
  const UniqueFd first = ConnectAsStranger(point_->ticket()).value();
  absl::Notification is_over;
  absl::Status status;
  std::thread rank([&] {
    status = ReceiveDescriptor(point_->ticket(), 1, Soon()).status();
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  point_ = nullptr;  // Ends every connection.
  rank.join();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
}

TEST_F(HandoverTest, AHostThatNeverServesIsATimeoutAndOneThatHasGoneAnError) {
  EXPECT_EQ(KindOf(ReceiveDescriptor(point_->ticket(), 1, Soon()).status()), ErrorKind::kTimeout);
  const std::string ticket = point_->ticket();
  point_ = nullptr;
  EXPECT_EQ(KindOf(ReceiveDescriptor(ticket, 1, Later()).status()), ErrorKind::kBackend);
}

TEST_F(HandoverTest, StrangersWhoSayNothingDoNotHoldUpTheRanks) {
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(ConnectAsStranger(point_->ticket()).value());
  const Deadline quick(absl::Seconds(15));
  std::thread host([&] { EXPECT_TRUE(point_->Serve(segment_.descriptor(), 2, Later()).ok()); });
  const auto descriptor = ReceiveDescriptor(point_->ticket(), 1, Later());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_FALSE(quick.Expired());
  host.join();
}

TEST_F(HandoverTest, StrangersInARowDoNotStretchTheDeadline) {
  std::atomic<bool> is_over{false};
  std::thread strangers([&] {
    while (!is_over) ConnectAsStranger(point_->ticket()).IgnoreError();
  });
  const Deadline deadline = Later();
  EXPECT_EQ(KindOf(point_->Serve(segment_.descriptor(), 2, Soon())), ErrorKind::kTimeout);
  EXPECT_FALSE(deadline.Expired());
  is_over = true;
  strangers.join();
}

TEST_F(HandoverTest, ALackOfDescriptorsEndsServingAtOnceAndSaysWhatToRaise) {
  const UniqueFd rank = ConnectAsStranger(point_->ticket()).value();
  absl::Notification is_over;
  absl::Status status;
  auto no_descriptors = std::make_unique<NoDescriptors>();
  std::thread host([&] {
    status = point_->Serve(segment_.descriptor(), 2, Later());
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  no_descriptors = nullptr;
  host.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise the limit (ulimit -n)"));
}

TEST_F(HandoverTest, ATicketThatIsNoneIsAnError) {
  for (const std::string& ticket : {std::string(), std::string("a b"), std::string(300, 'x')}) {
    EXPECT_FALSE(ReceiveDescriptor(ticket, 1, Later()).ok());
  }
}

}  // namespace
}  // namespace syncline
