#include "backends/shm/buffer_rings.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace syncline::shm {
namespace {

struct Used {
  uint64_t number;
  size_t begin, end;
};

TEST(EagerRingTest, ABufferNamesTheLastCollectiveThatHasUsedAnyOfIt) {
  std::mt19937 random(1);
  for (int size : {1, 2, 3, 7, 64, 256}) {
    const BufferSizes sizes(size);
    EagerRing ring(sizes);
    std::vector<Used> all;  // Of the last kEntrySlots collectives; all have finished those before.
    uint64_t number = 0, waited = 0, finished = 0, waits = 0;
    for (int i = 0; i < 20000; ++i) {
      number += 1 + random() % 3;
      // Sizes change from time to time.
      const size_t most = i / 100 % 3 == 0 ? sizes.small_eager : sizes.eager;
      const size_t bytes = 1 + random() % (i / 50 % 2 == 0 ? most : most / 8 + 1);
      // Ranks may have finished more than any allocation has named.
      finished = std::max(finished, waited);
      if (random() % 4 == 0) finished += random() % (number - finished);
      const EagerRing::Buffer buffer = ring.Allocate(bytes, number, random() % 2 == 0, finished);
      const size_t begin = buffer.offset, end = begin + bytes;
      ASSERT_LE(end, sizes.EagerBytes());
      ASSERT_EQ(begin % base::kCacheLine, 0u);
      ASSERT_LT(buffer.used_by, number);
      // A rank has waited for what the allocations before have named.
      waited = std::max(waited, buffer.used_by);
      // What a collective used that is too old to be needed may be forgotten.
      for (const Used& used : all) {
        const bool overlaps = used.begin < end && begin < used.end;
        if (overlaps && used.number + kEntrySlots > number) {
          ASSERT_GE(std::max(waited, finished), used.number) << size << " " << i;
          ++waits;
        }
      }
      all.push_back({number, begin, end});
      if (all.size() > kEntrySlots) all.erase(all.begin());
    }
    EXPECT_GT(waits, 0u) << size;
  }
}

TEST(EagerRingTest, WhatIsGivenAheadUsesNoBufferOfTheCallsBefore) {
  const BufferSizes sizes(2);
  for (size_t bytes : {64, 1024, 4096, 64 << 10}) {
    EagerRing ring(sizes);
    for (uint64_t number = 1; number < 1000; ++number) {
      const EagerRing::Buffer buffer = ring.Allocate(bytes, number, /*ahead=*/true, 0);
      EXPECT_LE(buffer.used_by + 8, std::max<uint64_t>(number, 8)) << bytes;
    }
  }
}

TEST(ChunkRingTest, ChunksThatMayBeInFlightAreApartAndAllOfTheBufferIsUsed) {
  std::mt19937 random(1);
  for (int size : {1, 2, 3, 7, 64, 256}) {
    const BufferSizes sizes(size);
    ChunkRing ring(sizes);
    size_t furthest = 0;
    for (int i = 0; i < 1000; ++i) {
      const size_t chunk = std::max<size_t>(sizes.max_chunk >> random() % 5, 1);
      const uint64_t chunks = 1 + random() % 9;
      const ChunkRing::Slots slots = ring.Allocate(chunk, chunks);
      for (uint64_t k = 0; k < chunks; ++k) {
        for (uint64_t other = k + 1; other < std::min<uint64_t>(k + kPipelineDepth, chunks);
             ++other) {
          ASSERT_NE(slots.offset(k), slots.offset(other)) << size << " " << i;
        }
        furthest = std::max(furthest, slots.offset(k) + chunk);
      }
    }
    EXPECT_EQ(furthest, kPipelineDepth * sizes.max_chunk);
  }
}

}  // namespace
}  // namespace syncline::shm
