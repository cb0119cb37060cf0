#include "backends/common/fd_passing.h"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
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
#include "core/base/unique_fd.h"
#include "core/tensor/segment.h"
#include "core/testing/log_lines.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Deadline Soon() { return Deadline(absl::Milliseconds(300)); }
const Deadline Later() { return Deadline(absl::Seconds(30)); }

// Connects as one who knows the name but not the secret could, and says nothing.
absl::StatusOr<base::UniqueFd> ConnectAsStranger(absl::string_view endpoint) {
  const absl::string_view name = endpoint.substr(0, endpoint.find(' '));
  base::SocketAddress address;
  address.storage.ss_family = AF_UNIX;
  std::memcpy(reinterpret_cast<sockaddr_un*>(address.get())->sun_path + 1, name.data(),
              name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return base::Connect(address, SOCK_SEQPACKET, Later());
}

class FdPassingTest : public testing::Test {
 protected:
  std::unique_ptr<FdServer> server_ = FdServer::Open().value();
  const tensor::Segment segment_ = tensor::Segment::Create(4096).value();
};

TEST_F(FdPassingTest, EveryRankGetsTheSameMemory) {
  std::thread host([&] { EXPECT_TRUE(server_->Serve(segment_.descriptor(), 3, Later()).ok()); });
  for (int rank : {2, 1}) {
    const auto descriptor = ReceiveFd(server_->endpoint(), rank, Later());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
    const tensor::Segment theirs = tensor::Segment::Map(dup(descriptor->get()), 4096).value();
    segment_.data()[0] = static_cast<char>(rank);
    EXPECT_EQ(theirs.data()[0], rank);
  }
  host.join();
}

TEST_F(FdPassingTest, RanksThatDoNotComeAreNamed) {
  std::thread comes([&] {
    const auto descriptor = ReceiveFd(server_->endpoint(), 2, Later());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  });
  const absl::Status status = server_->Serve(segment_.descriptor(), 4, Deadline(absl::Seconds(3)));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ranks 1 and 3 of 4 have not come"), HasSubstr("3s")));
  comes.join();
}

TEST_F(FdPassingTest, WhoDoesNotKnowTheSecretGetsNothing) {
  std::string endpoint = server_->endpoint();
  endpoint.back() = endpoint.back() == '0' ? '1' : '0';
  std::thread host([&] {
    EXPECT_FALSE(server_->Serve(segment_.descriptor(), 2, Deadline(absl::Seconds(3))).ok());
  });
  const auto descriptor = ReceiveFd(endpoint, 1, Later());
  EXPECT_EQ(KindOf(descriptor.status()), ErrorKind::kNetwork) << descriptor.status();
  host.join();
}

TEST_F(FdPassingTest, ACallerThatIsNoRankWhichIsAwaitedIsLoggedOnceAndTheRanksAreServed) {
  const LogLines lines;
  std::thread host([&] { EXPECT_TRUE(server_->Serve(segment_.descriptor(), 3, Later()).ok()); });
  EXPECT_TRUE(ReceiveFd(server_->endpoint(), 2, Later()).ok());
  for (int rank : {2, 9, -1, 0}) {
    const absl::Status refused = ReceiveFd(server_->endpoint(), rank, Later()).status();
    EXPECT_EQ(KindOf(refused), ErrorKind::kNetwork) << refused;
  }
  EXPECT_TRUE(ReceiveFd(server_->endpoint(), 1, Later()).ok());
  host.join();
  EXPECT_TRUE(lines.Await("refused", Later()));
  EXPECT_THAT(lines.text(), HasSubstr("a process of this host, which knows the secret of this "
                                      "group, but says that it is rank 2: that rank has come"));
  const std::string text = lines.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST_F(FdPassingTest, AFullBacklogDoesNotKeepARankPastItsDeadline) {
  ASSERT_EQ(listen(server_->socket(), /*backlog=*/0), 0);
  const base::UniqueFd first = ConnectAsStranger(server_->endpoint()).value();
  absl::Notification is_over;
  absl::Status status;
  std::thread rank([&] {
    status = ReceiveFd(server_->endpoint(), 1, Soon()).status();
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  server_ = nullptr;  // Ends every connection.
  rank.join();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
}

TEST_F(FdPassingTest, AHostThatNeverServesIsATimeoutAndOneThatHasGoneAnError) {
  EXPECT_EQ(KindOf(ReceiveFd(server_->endpoint(), 1, Soon()).status()), ErrorKind::kTimeout);
  const std::string endpoint = server_->endpoint();
  server_ = nullptr;
  const absl::Status gone = ReceiveFd(endpoint, 1, Later()).status();
  EXPECT_EQ(KindOf(gone), ErrorKind::kNetwork);
  EXPECT_EQ(RanksOf(gone), std::vector<int>({0}));
}

TEST_F(FdPassingTest, StrangersWhoSayNothingDoNotHoldUpTheRanks) {
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(ConnectAsStranger(server_->endpoint()).value());
  const Deadline quick(absl::Seconds(15));
  std::thread host([&] { EXPECT_TRUE(server_->Serve(segment_.descriptor(), 2, Later()).ok()); });
  const auto descriptor = ReceiveFd(server_->endpoint(), 1, Later());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_FALSE(quick.Expired());
  host.join();
}

TEST_F(FdPassingTest, StrangersInARowDoNotStretchTheDeadline) {
  std::atomic<bool> is_over{false};
  const std::string endpoint = server_->endpoint();
  std::thread strangers([&] {
    while (!is_over) ConnectAsStranger(endpoint).IgnoreError();
  });
  const Deadline deadline = Later();
  EXPECT_EQ(KindOf(server_->Serve(segment_.descriptor(), 2, Soon())), ErrorKind::kTimeout);
  EXPECT_FALSE(deadline.Expired());
  is_over = true;
  server_ = nullptr;  // The last stranger may be waiting for a place in its backlog.
  strangers.join();
}

TEST_F(FdPassingTest, ALackOfDescriptorsEndsServingAtOnceAndSaysWhatToRaise) {
  const base::UniqueFd rank = ConnectAsStranger(server_->endpoint()).value();
  absl::Notification is_over;
  absl::Status status;
  auto no_descriptors = std::make_unique<NoDescriptors>();
  std::thread host([&] {
    status = server_->Serve(segment_.descriptor(), 2, Later());
    is_over.Notify();
  });
  EXPECT_TRUE(is_over.WaitForNotificationWithTimeout(absl::Seconds(10)));
  no_descriptors = nullptr;
  host.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise the limit (ulimit -n)"));
}

TEST_F(FdPassingTest, AMalformedEndpointIsAnError) {
  for (const std::string& endpoint : {std::string(), std::string("a b"), std::string(300, 'x')}) {
    const absl::Status status = ReceiveFd(endpoint, 1, Later()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(RanksOf(status), std::vector<int>({0}));
  }
}

}  // namespace
}  // namespace syncline::backends
