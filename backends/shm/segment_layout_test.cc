#include "backends/shm/segment_layout.h"

#include <cstddef>
#include <cstdlib>
#include <map>

#include "gtest/gtest.h"

namespace syncline::shm {
namespace {

TEST(SegmentLayoutTest, EveryGroupTakesBoundedMemoryWhoseBuffersAreApart) {
  for (int size : {1, 2, 3, 7, 16, 64, 255, 256, 257, 512, 1024}) {
    SCOPED_TRACE(size);
    const size_t bytes = SegmentLayout::BytesFor(size);
    EXPECT_LT(bytes, (size <= 256 ? size_t{90} : size_t{1024}) << 20);
    alignas(RankRegion) static char origin;
    const SegmentLayout layout(&origin, size);
    const BufferSizes& sizes = layout.sizes();
    std::map<const char*, size_t> ranges;  // By their beginnings.
    const auto add = [&](const void* begin, size_t length) {
      EXPECT_EQ((static_cast<const char*>(begin) - &origin) % base::kCacheLine, 0u);
      EXPECT_TRUE(ranges.emplace(static_cast<const char*>(begin), length).second);
    };
    add(&layout.failure_record(), sizeof(FailureRecord));
    for (int r = 0; r < size; ++r) {
      add(&layout.join_flag(r), sizeof(JoinFlag));
      add(&layout.region(r), sizeof(RankRegion));
      add(layout.full_call(r), sizeof(int64_t));
      add(layout.eager_buffer(r, 0), sizes.EagerBytes());
      add(layout.chunk(r, 0), kPipelineDepth * sizes.max_chunk);
      add(layout.reduced(r, 0), kPipelineDepth * sizes.max_chunk / size);
      for (int i = 0; i < kEagerPayloads; ++i) {
        add(layout.eager_payload(r, i), sizes.eager_payload);
      }
      for (int i = 0; i < sizes.rendezvous_buffers; ++i)
        add(layout.rendezvous_buffer(r, i), sizes.rendezvous_buffer);
      for (int s = 0; s < size; ++s)
        add(&layout.message_slot(r, s, 0), sizes.message_slots * sizeof(MessageSlot));
    }
    const char* end = &origin;
    for (const auto& [begin, length] : ranges) {
      EXPECT_GE(begin, end);
      end = begin + length;
    }
    EXPECT_LE(end, &origin + bytes);
  }
}

TEST(SegmentLayoutTest, TheFieldsAreWhereTheDocumentSays) {  // docs/internals/shared_segment.md
  EXPECT_EQ(sizeof(FailureRecord), 4160u);
  EXPECT_EQ(sizeof(JoinFlag), 128u);
  EXPECT_EQ(sizeof(MessageSlot), 64u);
  EXPECT_EQ(offsetof(RankRegion, collective_event), 16384u);
  EXPECT_EQ(offsetof(RankRegion, chunks_written), 16448u);
  EXPECT_EQ(offsetof(RankRegion, chunks_reduced), 16512u);
  EXPECT_EQ(offsetof(RankRegion, chunks_read), 16576u);
  EXPECT_EQ(offsetof(RankRegion, registrations), 16640u);
  EXPECT_EQ(offsetof(RankRegion, mapped), 16896u);
  EXPECT_EQ(offsetof(RankRegion, direct_steps), 16960u);
  EXPECT_EQ(offsetof(RankRegion, bounce_request), 16968u);
  EXPECT_EQ(offsetof(RankRegion, bounce_answer), 17000u);
  EXPECT_EQ(offsetof(RankRegion, message_event), 17024u);
  EXPECT_EQ(offsetof(RankRegion, rendezvous_progress), 17088u);
  EXPECT_EQ(offsetof(RendezvousProgress, read), 64u);
  EXPECT_EQ(offsetof(RankRegion, left), 18112u);
  EXPECT_EQ(offsetof(RankRegion, full_call_number), 18120u);
  EXPECT_EQ(offsetof(RankRegion, needs_fence), 18128u);
  EXPECT_EQ(offsetof(RankRegion, nonce_address), 18264u);
  EXPECT_EQ(offsetof(RankRegion, leave_reason), 18280u);
  EXPECT_EQ(offsetof(RankRegion, sleeps_elsewhere), 18792u);
  EXPECT_EQ(offsetof(RankRegion, collectives_finished), 18816u);
  EXPECT_EQ(offsetof(RankRegion, collectives_settled), 18944u);
  EXPECT_EQ(offsetof(RankRegion, agreements), 18952u);
  EXPECT_EQ(offsetof(RankRegion, progress_event), 19008u);
}

TEST(SegmentLayoutTest, WhatTheRanksReserveIsTheWholeSegment) {
  for (int size : {1, 2, 3, 7, 64, 256}) {
    SCOPED_TRACE(size);
    std::map<size_t, size_t> ranges;  // Ends by beginnings.
    const SegmentLayout::Extent common = SegmentLayout::CommonOf(size);
    ranges[common.offset] = common.offset + common.size;
    for (int r = 0; r < size; ++r) {
      for (const SegmentLayout::Extent& range : SegmentLayout::OwnOf(r, size)) {
        EXPECT_TRUE(ranges.emplace(range.offset, range.offset + range.size).second);
      }
    }
    size_t reserved = 0;
    for (const auto& [begin, end] : ranges) {
      EXPECT_EQ(begin, reserved);
      reserved = end;
    }
    EXPECT_EQ(reserved, SegmentLayout::BytesFor(size));
  }
}

TEST(SegmentLayoutTest, EveryOtherRankHasRoomInWhatIsStagedForAll) {
  for (int size : {2, 3, 7, 64, 255, 256, 257, 512, 1024}) {
    const BufferSizes sizes(size);
    EXPECT_GE(sizes.eager / (size - 1) / base::kCacheLine, size > 128 ? 0u : 1u) << size;
    EXPECT_GE(sizes.max_chunk / (size - 1) / base::kCacheLine, 1u) << size;
    EXPECT_GE(sizes.message_slots, 8u);
  }
}

TEST(SegmentLayoutTest, BlocksForAllOtherRanksFitAChunkThatDividesTheRing) {
  const auto check = [] {
    for (int size = 2; size <= 1024; size += size < 300 ? 1 : 29) {
      const BufferSizes sizes(size);
      const size_t others = size - 1;
      for (size_t bytes : {1, 64, 4096, 100'003, 50 << 20}) {
        const auto [chunk, block] = sizes.BlockChunksOf(bytes, others);
        ASSERT_GE(block, base::kCacheLine) << size << " " << bytes;
        ASSERT_EQ(block % base::kCacheLine, 0u) << size << " " << bytes;
        ASSERT_LE(block * others, chunk) << size << " " << bytes;
        ASSERT_LE(chunk, sizes.max_chunk) << size << " " << bytes;
        ASSERT_EQ(sizes.max_chunk % chunk, 0u) << size << " " << bytes;
        ASSERT_GE(chunk, sizes.min_chunk) << size << " " << bytes;
      }
    }
  };
  check();
  setenv("SYNCLINE_SHM_TUNING", "64,64,64", 1);
  check();
  unsetenv("SYNCLINE_SHM_TUNING");
}

}  // namespace
}  // namespace syncline::shm
