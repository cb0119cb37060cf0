#include "backends/shm/buffer_rings.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace syncline::shm {
namespace {

bool AreApart(size_t a, size_t a_size, size_t b, size_t b_size) {
  return a + a_size <= b || b + b_size <= a;
}

TEST(EagerRingTest, BuffersOfCallsInARowAreApartAndWithinTheirBuffer) {
  std::mt19937 random(1);
  for (int size : {1, 2, 3, 7, 64, 256}) {
    const BufferSizes sizes(size);
    EagerRing ring(sizes);
    size_t last = 0, last_bytes = 0;
    for (int i = 0; i < 10000; ++i) {
      const size_t most = i % 3 == 0 ? sizes.small_eager : sizes.eager;
      const size_t bytes = 1 + random() % most;
      const size_t offset = ring.Allocate(bytes);
      ASSERT_TRUE(AreApart(offset, bytes, last, last_bytes)) << size << " " << i;
      ASSERT_LE(offset + bytes, 2 * sizes.small_eager + sizes.large_eager_ring);
      ASSERT_EQ(offset % base::kCacheLine, 0u);
      last = offset;
      last_bytes = bytes;
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
