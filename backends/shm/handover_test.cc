#include "backends/shm/handover.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "core/segment.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Deadline Soon() { return Deadline(absl::Milliseconds(300)); }
const Deadline Later() { return Deadline(absl::Seconds(30)); }

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
    const Segment theirs = Segment::Map(*descriptor, 4096).value();
    segment_.data()[0] = static_cast<char>(rank);
    EXPECT_EQ(theirs.data()[0], rank);
  }
  host.join();
}

TEST_F(HandoverTest, RanksThatDoNotComeAreNamed) {
  std::thread comes([&] {
    const auto descriptor = ReceiveDescriptor(point_->ticket(), 2, Later());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status();
    close(*descriptor);
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

TEST_F(HandoverTest, AHostThatNeverServesIsATimeoutAndOneThatHasGoneAnError) {
  EXPECT_EQ(KindOf(ReceiveDescriptor(point_->ticket(), 1, Soon()).status()), ErrorKind::kTimeout);
  const std::string ticket = point_->ticket();
  point_ = nullptr;
  EXPECT_EQ(KindOf(ReceiveDescriptor(ticket, 1, Later()).status()), ErrorKind::kBackend);
}

TEST_F(HandoverTest, ATicketThatIsNoneIsAnError) {
  for (const std::string& ticket : {std::string(), std::string("a b"), std::string(300, 'x')}) {
    EXPECT_FALSE(ReceiveDescriptor(ticket, 1, Later()).ok());
  }
}

}  // namespace
}  // namespace syncline
