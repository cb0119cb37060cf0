#include "backends/common/call.h"
#include "backends/shm/call_notes.h"
#include "backends/shm/meeting.h"
#include "core/base/status.h"
#include "core/group/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/shm_ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(MeetingTest, AMismatchWithARankThatIsStoppedBeforeItExplainsIsNoTimeout) {
  ShmRanks ranks(2);
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {3});
  const CallContext context = {7, Deadline(kPatience)};
  // Rank 1 has shown its header, and does nothing more.
  Header& header = ranks.board().header(1, 1);
  SetWords(Call::Broadcast(tensor, 0, context), header.content);
  header.number.store(1);
  const Call call = Call::AllReduce(tensor, ReduceOp::kSum, context);
  Meeting meeting(ranks.vigil(0), call, 1, context.deadline, 0, 0);
  const absl::Status status = meeting.Open();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0 called all_reduce #7 (float32"));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 called another, broadcast #7"));
  EXPECT_EQ(ranks.vigil(1).verdict().message(), status.message());
}

}  // namespace
}  // namespace syncline
