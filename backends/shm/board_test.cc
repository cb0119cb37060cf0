#include "backends/shm/board.h"

#include <cstdlib>
#include <map>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(BoardTest, EveryGroupTakesBoundedMemoryWhoseBuffersAreApart) {
  for (int size : {1, 2, 3, 7, 16, 64, 255, 256, 257, 512, 1024}) {
    SCOPED_TRACE(size);
    const size_t bytes = Board::BytesFor(size);
    EXPECT_LT(bytes, (size <= 256 ? size_t{90} : size_t{1024}) << 20);
    alignas(kCacheLine) static char origin;
    const Board board(&origin, size);
    const Sizes& sizes = board.sizes();
    std::map<const char*, size_t> ranges;  // By their beginnings.
    const auto add = [&](const void* begin, size_t length) {
      EXPECT_EQ((static_cast<const char*>(begin) - &origin) % kCacheLine, 0u);
      EXPECT_TRUE(ranges.emplace(static_cast<const char*>(begin), length).second);
    };
    add(&board.verdict(), sizeof(Verdict));
    for (int r = 0; r < size; ++r) {
      add(&board.entrance(r), sizeof(Entrance));
      add(&board.area(r), sizeof(RankArea));
      add(board.call(r), sizeof(int64_t));
      add(board.table(r, 0), 2 * sizes.near + sizes.tables);
      add(board.piece(r, 0), kDepth * sizes.piece);
      add(board.result(r, 0), kDepth * sizes.piece / size);
      add(board.parcel(r, 0), kParcels * sizes.parcel);
      for (int i = 0; i < sizes.streams; ++i) add(board.stream(r, i), sizes.stream);
      for (int s = 0; s < size; ++s) add(&board.letter(r, s, 0), sizes.letters * sizeof(Letter));
    }
    const char* end = &origin;
    for (const auto& [begin, length] : ranges) {
      EXPECT_GE(begin, end);
      end = begin + length;
    }
    EXPECT_LE(end, &origin + bytes);
  }
}

TEST(BoardTest, WhatTheRanksReserveIsTheWholeSegment) {
  for (int size : {1, 2, 3, 7, 64, 256}) {
    SCOPED_TRACE(size);
    std::map<size_t, size_t> ranges;  // Ends by beginnings.
    const Board::Range common = Board::CommonOf(size);
    ranges[common.offset] = common.offset + common.size;
    for (int r = 0; r < size; ++r) {
      for (const Board::Range& range : Board::OwnOf(r, size)) {
        EXPECT_TRUE(ranges.emplace(range.offset, range.offset + range.size).second);
      }
    }
    size_t reserved = 0;
    for (const auto& [begin, end] : ranges) {
      EXPECT_EQ(begin, reserved);
      reserved = end;
    }
    EXPECT_EQ(reserved, Board::BytesFor(size));
  }
}

TEST(BoardTest, EveryOtherRankHasRoomInWhatIsLaidForAll) {
  for (int size : {2, 3, 7, 64, 255, 256, 257, 512, 1024}) {
    const Sizes sizes(size);
    EXPECT_GE(sizes.eager / (size - 1) / kCacheLine, size > 128 ? 0u : 1u) << size;
    EXPECT_GE(sizes.piece / (size - 1) / kCacheLine, 1u) << size;
    EXPECT_GE(sizes.letters, 8u);
  }
}

TEST(BoardTest, BlocksForAllOtherRanksFitAPieceThatDividesTheRing) {
  const auto check = [] {
    for (int size = 2; size <= 1024; size += size < 300 ? 1 : 29) {
      const Sizes sizes(size);
      const size_t others = size - 1;
      for (size_t bytes : {1, 64, 4096, 100'003, 50 << 20}) {
        const auto [piece, room] = sizes.BlocksOf(bytes, others);
        ASSERT_GE(room, kCacheLine) << size << " " << bytes;
        ASSERT_EQ(room % kCacheLine, 0u) << size << " " << bytes;
        ASSERT_LE(room * others, piece) << size << " " << bytes;
        ASSERT_LE(piece, sizes.piece) << size << " " << bytes;
        ASSERT_EQ(sizes.piece % piece, 0u) << size << " " << bytes;
        ASSERT_GE(piece, sizes.least_piece) << size << " " << bytes;
      }
    }
  };
  check();
  setenv("SYNCLINE_SHM_TUNING", "64,64,64", 1);
  check();
  unsetenv("SYNCLINE_SHM_TUNING");
}

}  // namespace
}  // namespace syncline
