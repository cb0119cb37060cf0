#include "backends/common/call_fingerprint.h"
#include "backends/shm/collective_entry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/status.h"
#include "tests/backends/shm_ranks.h"

namespace syncline::shm {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

TEST(CollectiveEntryTest, AMismatchWithARankThatIsStoppedBeforeItPublishesItsCallIsNoTimeout) {
  ShmRanks ranks(2);
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {3});
  const Collective broadcast = Collective::Broadcast(tensor, 0);
  const Collective all_reduce = Collective::AllReduce(tensor, ReduceOp::kSum);
  CallContext context = {7, Deadline(kTimeout)};
  // Rank 1 has entered, and does nothing more.
  EntrySlot& slot = ranks.layout().entry_slot(1, 1);
  context.collective = &broadcast;
  slot.content.fingerprint = backends::CallFingerprint::Of(context);
  slot.stamp.store(EntrySlot::Stamp(1, /*meets=*/true));
  context.collective = &all_reduce;
  EntryRing ring(ranks.group(0));
  CollectiveEntry entry(ring, context, 0);
  const absl::Status status = entry.Exchange();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0 called all_reduce #7 (float32"));
  EXPECT_THAT(status.message(),
              HasSubstr("rank 1 called broadcast #7 (float32, 3 elements, root 0)"));
  EXPECT_EQ(ranks.group(1).failure_cell().failure().message(), status.message());
}

}  // namespace
}  // namespace syncline::shm
