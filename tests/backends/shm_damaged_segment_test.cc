// What a rank does that reads from the segment what no rank writes, as a broken peer might leave
// it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/collective_entry.h"
#include "backends/shm/direct_access.h"
#include "backends/shm/failure_cell.h"
#include "backends/shm/point_to_point.h"
#include "backends/shm/registration_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/error_origin.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "tests/backends/shm_ranks.h"
#include "tests/support/ranks.h"

namespace syncline::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kLong = 1 << 20;  // Bytes of a message that takes a rendezvous.

class DamagedSegmentTest : public testing::Test {
 protected:
  // Rank 1 receives `bytes` from rank 0, whose message slot stands in for a rank that is broken.
  absl::Status Recv(int64_t bytes) {
    const Tensor tensor = Tensor::Zeros(DType::kUInt8, {bytes});
    const Collective recv = Collective::Recv(tensor, 0);
    CallContext context;
    context.deadline = Deadline(kTimeout);
    context.collective = &recv;
    PointToPoint receiver(ranks_.group(1), NodeOptions());
    return receiver.Recv(tensor, 0, context).status();
  }

  MessageSlot& slot() { return ranks_.layout().message_slot(0, 1, 0); }
  void SetState(uint32_t state) {
    slot().state.store(state, std::memory_order_release);
    ranks_.group(0).waiter().Notify(ranks_.layout().region(1).message_event);
  }
  void Post(int64_t bytes, uint64_t eager_payload, uint32_t next = 1) {
    slot().next = next;
    slot().count = bytes;
    slot().dtype = static_cast<uint16_t>(DType::kUInt8);
    slot().set_eager_payload(eager_payload);
    SetState(MessageSlot::kPosted);
  }

  // What rank 1 gets of a rendezvous whose sender names this buffer and this position.
  absl::Status RecvRendezvous(uint16_t buffer, uint64_t position) {
    Post(kLong, MessageSlot::kNoEagerPayload);
    std::thread sender([&] {
      const Deadline deadline(kTimeout);
      while (slot().state.load() != MessageSlot::kMatched && !deadline.Expired()) {
        std::this_thread::yield();
      }
      slot().buffer = buffer;
      slot().position.store(position);
      SetState(MessageSlot::kTransferring);
    });
    const absl::Status status = Recv(kLong);
    sender.join();
    return status;
  }

  ShmRanks ranks_{2};
};

// Rank 0 shares memory for direct access; rank 1 gets a handle with `offset` in it, from which it
// expects `bytes`. Returns what rank 1 makes of it.
absl::Status ResolveHandle(ShmRanks& ranks, uint64_t offset, size_t bytes) {
  const Tensor shared = EmptyShared(DType::kUInt8, {kLong}).value();
  const Collective barrier = Collective::Barrier();
  CallContext context;
  context.deadline = Deadline(kTimeout);
  context.collective = &barrier;
  return RunRanks(2, [&](int rank) -> absl::Status {
    EntryRing ring(ranks.group(rank));
    CollectiveEntry entry(ring, context, /*bytes=*/0);
    RegistrationCache registrations(ranks.group(rank));
    registrations.StageHandle(rank == 0 ? shared.data() : nullptr, kLong, {/*by_mapping=*/true},
                              entry);
    if (rank == 0) {
      BufferHandle handle;
      std::memcpy(&handle, entry.InlineData(sizeof(handle)), sizeof(handle));
      handle.offset = offset;
      std::memcpy(entry.InlineData(sizeof(handle)), &handle, sizeof(handle));
    }
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
    const auto bytes_of = [&](int) { return bytes; };
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct,
                              registrations.Resolve({/*only=*/0}, bytes_of, entry));
    return is_direct ? absl::OkStatus() : BackendError("the memory was not mapped");
  })[1];
}

void ExpectDamage(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0 ("), HasSubstr("has written " + what)));
}

TEST_F(DamagedSegmentTest, ABufferThatDoesNotExistFailsTheGroup) {
  const absl::Status status = RecvRendezvous(9999, 0);
  ExpectDamage(status, "the rendezvous buffer 9999");
  EXPECT_EQ(ranks_.group(0).failure_cell().failure().message(), status.message());
}

TEST_F(DamagedSegmentTest, APositionAtWhichNoChunkBeginsFailsTheGroup) {
  ExpectDamage(RecvRendezvous(0, 3), "the position 3");
}

TEST_F(DamagedSegmentTest, AnEagerMessageThatNoBufferHoldsFailsTheGroup) {
  Post(kLong, 0);
  ExpectDamage(Recv(kLong), "an eager message of 1048576 bytes");
}

TEST_F(DamagedSegmentTest, AChainOfMessagesThatLeadsBackIntoItselfFailsTheGroup) {
  slot().tag.store(1);  // No receive matches it.
  Post(4, MessageSlot::kNoEagerPayload, /*next=*/0);
  ExpectDamage(Recv(4), "a chain of messages without an end");
}

TEST_F(DamagedSegmentTest, AHandleBeyondItsMemoryFailsTheGroup) {
  const absl::Status status = ResolveHandle(ranks_, uint64_t{1} << 40, 1);
  ExpectDamage(status, "a handle with the offset 1099511627776");
  EXPECT_EQ(ranks_.group(0).failure_cell().failure().message(), status.message());
}

TEST_F(DamagedSegmentTest, AHandleWhoseBytesEndBeyondItsMemoryFailsTheGroup) {
  ExpectDamage(ResolveHandle(ranks_, kLong - 4096, 4097),
               "a handle with the offset 1044480, from which 4097 bytes are not within its memory");
}

TEST_F(DamagedSegmentTest, AHandleWhoseEndWouldOverflowFailsTheGroup) {
  ExpectDamage(ResolveHandle(ranks_, 8, std::numeric_limits<size_t>::max()),
               "a handle with the offset 8");
}

TEST_F(DamagedSegmentTest, AHandleWhoseBytesEndWithItsMemoryIsAccepted) {
  const absl::Status status = ResolveHandle(ranks_, kLong - 4096, 4096);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(DamagedSegmentTest, ARequestForBytesBeyondATensorFailsTheGroup) {
  // Rank 1 reads rank 0's tensor by its address, and asks for what lies behind it.
  ASSERT_EQ(setenv("SYNCLINE_SHM_TUNING", "65536,32768,524288,65536,524288,65537", 1), 0);
  ShmRanks ranks(2);
  ASSERT_EQ(unsetenv("SYNCLINE_SHM_TUNING"), 0);
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int rank) -> absl::Status {
    const Tensor tensor = Tensor::Zeros(DType::kUInt8, {kLong});
    const Collective broadcast = Collective::Broadcast(tensor, 0);
    CallContext context;
    context.deadline = Deadline(kTimeout);
    context.collective = &broadcast;
    EntryRing ring(ranks.group(rank));
    CollectiveEntry entry(ring, context, /*bytes=*/0);
    AdaptiveCopier copier;
    DirectAccess access(ranks.group(rank), copier);
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct, access.Exchange(entry, kLong, {/*only=*/0},
                                                                    absl::MakeConstSpan(&tensor, 1),
                                                                    [](int) { return kLong; }));
    if (!is_direct) return absl::InternalError("the tensor is not read by its address");
    if (rank == 0) return access.Finish({/*only=*/0}, entry.context());
    BounceRequest& request = ranks.layout().region(1).bounce_request;
    request.offset = kLong - 1;
    request.bytes = 2;
    request.key.store(BounceRequest::Key(0, 1));
    return absl::OkStatus();
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kBackend);
  EXPECT_THAT(
      std::string(statuses[0].message()),
      AllOf(HasSubstr("rank 1 ("), HasSubstr("has written a request for 2 bytes from 1048575 on")));
}

TEST_F(DamagedSegmentTest, AnElementTypeThatDoesNotExistIsAMismatch) {
  Post(4, MessageSlot::kNoEagerPayload);
  slot().dtype = 4711;
  EXPECT_EQ(KindOf(Recv(4)), ErrorKind::kMismatch);
}

TEST_F(DamagedSegmentTest, AFailureRecordOutOfRangeIsABackendError) {
  ranks_.group(0).failure_cell().Fail(TimeoutError("late")).IgnoreError();
  FailureRecord& record = ranks_.layout().failure_record();
  record.kind = record.reporter = record.size = record.origin_size =
      std::numeric_limits<uint32_t>::max();
  const absl::Status status = Recv(4);
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_LE(status.message().size(), 2 * sizeof(record.text));
}

TEST_F(DamagedSegmentTest, AnOriginOutOfRangeIsNone) {
  const absl::Status cause = WithRanks(TimeoutError("late"), {0});
  ranks_.group(0).failure_cell().Fail(cause).IgnoreError();
  EXPECT_EQ(ranks_.group(1).failure_cell().failure(), cause);
  FailureRecord& record = ranks_.layout().failure_record();
  record.origin_size = std::numeric_limits<uint32_t>::max();
  const absl::Status status = ranks_.group(1).failure_cell().failure();
  EXPECT_EQ(status.message(), "late");
  EXPECT_EQ(RanksOf(status).size(), 0u);
}

TEST_F(DamagedSegmentTest, ALongMessageLosesItsEndAndKeepsItsOrigin) {
  ranks_.group(0)
      .failure_cell()
      .Fail(WithRanks(TimeoutError(std::string(10000, 'x')), {0, 1}))
      .IgnoreError();
  const absl::Status status = ranks_.group(1).failure_cell().failure();
  EXPECT_GT(status.message().size(), 4000u);
  EXPECT_EQ(RanksOf(status), std::vector<int>({0, 1}));
}

TEST_F(DamagedSegmentTest, RanksAtFaultThatTheGroupDoesNotHaveAreDropped) {
  const absl::Status cause = WithRanks(TimeoutError("late"), {1, 2, 1000});
  ranks_.group(0).failure_cell().Fail(cause).IgnoreError();
  const absl::Status status = ranks_.group(1).failure_cell().failure();
  EXPECT_EQ(status.message(), "late");
  EXPECT_EQ(RanksOf(status), std::vector<int>({1}));
}

TEST_F(DamagedSegmentTest, AReasonForLeavingWithoutAnEndIsCutShort) {
  RankRegion& region = ranks_.layout().region(0);
  std::fill_n(region.leave_reason, sizeof(region.leave_reason), 'x');
  region.left.store(1, std::memory_order_release);
  EXPECT_THAT(std::string(Recv(4).message()),
              HasSubstr(": " + std::string(sizeof(region.leave_reason), 'x')));
}

}  // namespace
}  // namespace syncline::shm
