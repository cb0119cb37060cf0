#include "backends/shm/rings.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace syncline {
namespace {

bool AreApart(size_t a, size_t a_size, size_t b, size_t b_size) {
  return a + a_size <= b || b + b_size <= a;
}

TEST(TableRingTest, TablesOfCallsInARowAreApartAndWithinTheirBuffer) {
  std::mt19937 random(1);
  for (int size : {1, 2, 3, 7, 64, 256}) {
    const Sizes sizes(size);
    TableRing ring(sizes);
    size_t last = 0, last_bytes = 0;
    for (int i = 0; i < 10000; ++i) {
      const size_t most = i % 3 == 0 ? sizes.near : sizes.eager;
      const size_t bytes = 1 + random() % most;
      const size_t offset = ring.Take(bytes);
      ASSERT_TRUE(AreApart(offset, bytes, last, last_bytes)) << size << " " << i;
      ASSERT_LE(offset + bytes, 2 * sizes.near + sizes.tables);
      ASSERT_EQ(offset % kCacheLine, 0u);
      last = offset;
      last_bytes = bytes;
    }
  }
}

TEST(PieceRingTest, PiecesThatMayBeUnderWayAreApartAndAllOfTheBufferIsUsed) {
  std::mt19937 random(1);
  for (int size : {1, 2, 3, 7, 64, 256}) {
    const Sizes sizes(size);
    PieceRing ring(sizes);
    size_t furthest = 0;
    for (int i = 0; i < 1000; ++i) {
      const size_t piece = std::max<size_t>(sizes.piece >> random() % 5, 1);
      const uint64_t pieces = 1 + random() % 9;
      const PieceRing::Slots slots = ring.Take(piece, pieces);
      for (uint64_t k = 0; k < pieces; ++k) {
        for (uint64_t other = k + 1; other < std::min<uint64_t>(k + kDepth, pieces); ++other) {
          ASSERT_NE(slots.offset(k), slots.offset(other)) << size << " " << i;
        }
        furthest = std::max(furthest, slots.offset(k) + piece);
      }
    }
    EXPECT_EQ(furthest, kDepth * sizes.piece);
  }
}

}  // namespace
}  // namespace syncline
