#include "backends/common/call.h"
#include "backends/shm/call_fingerprint.h"
#include "backends/shm/collective_entry.h"
#include "core/base/status.h"
#include "core/group/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/backends/shm_ranks.h"

namespace syncline::shm {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

TEST(CollectiveEntryTest, AMismatchWithARankThatIsStoppedBeforeItPublishesItsCallIsNoTimeout) {
  ShmRanks ranks(2);
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {3});
  const CallContext context = {7, Deadline(kTimeout)};
  // Rank 1 has entered, and does nothing more.
  EntrySlot& slot = ranks.layout().entry_slot(1, 1);
  SetFingerprint(Call::Broadcast(tensor, 0, context), slot.content);
  slot.number.store(1);
  const Call call = Call::AllReduce(tensor, ReduceOp::kSum, context);
  CollectiveEntry entry(ranks.group(0), call, 1, context.deadline, 0, 0);
  const absl::Status status = entry.Exchange();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0 called all_reduce #7 (float32"));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 called another, broadcast #7"));
  EXPECT_EQ(ranks.group(1).failure_cell().failure().message(), status.message());
}

}  // namespace
}  // namespace syncline::shm
