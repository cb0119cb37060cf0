// The kernel that copies many spans: how the work is split, and what one thread does.
//
// A span is cut into tiles of kTileBytes, the first of which may be shorter, so that all others
// begin where `to` is aligned. Each block copies a range of the tiles of all spans: blocks have
// about the same number of bytes, whatever the sizes of the spans.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_COPY_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/device/kernels/elements.h"
#include "core/device/kernels/thread.h"

namespace syncline::device::kernels {

// What a block of kThreads threads moves at once: four vectors each, so that enough loads are under
// way to fill the memory's bandwidth.
constexpr uint32_t kTileBytes = 4 * kThreads * kVectorBytes;

struct CopyPart {
  char* to;
  const char* from;
  uint64_t bytes;
};

// The parameters of a launch, which CUDA passes by value: at most 32,764 bytes.
template <uint32_t kCapacity>
struct CopyArgs {
  uint32_t count;                      // Of the parts, none of which is empty.
  uint32_t first_tile[kCapacity + 1];  // Of each part; behind the last, how many tiles there are.
  CopyPart parts[kCapacity];
};

SYNCLINE_HOST_DEVICE uint32_t Misalignment(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVectorBytes);
}

// How many tiles a part has; fits 32 bits up to 2^46 bytes.
SYNCLINE_HOST_DEVICE uint64_t TileCount(const CopyPart& part) {
  return (part.bytes + Misalignment(part.to) + kTileBytes - 1) / kTileBytes;
}

// Tile number `tile` of the part.
SYNCLINE_HOST_DEVICE CopyPart TileOf(const CopyPart& part, uint32_t tile) {
  const uint64_t ahead = Misalignment(part.to);
  const uint64_t end = (static_cast<uint64_t>(tile) + 1) * kTileBytes - ahead;
  const uint64_t begin = tile == 0 ? 0 : end - kTileBytes;
  return {part.to + begin, part.from + begin, (end < part.bytes ? end : part.bytes) - begin};
}

// The first tile of block `block` of `blocks`; the next block's first one is this one's end.
SYNCLINE_HOST_DEVICE uint32_t FirstTile(uint32_t tiles, uint32_t block, uint32_t blocks) {
  return static_cast<uint32_t>(static_cast<uint64_t>(tiles) * block / blocks);
}

// The last of `count` parts whose first tile is not behind `tile`.
SYNCLINE_HOST_DEVICE uint32_t FindPart(const uint32_t* first_tile, uint32_t count, uint32_t tile) {
  uint32_t low = 0;
  for (uint32_t high = count; high - low > 1;) {
    const uint32_t middle = low + (high - low) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Sixteen bytes at any address, out of the aligned words that hold them: four, or five where the
// address is no multiple of 4.
SYNCLINE_HOST_DEVICE Bytes16 LoadShifted(const char* from) {
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 4) * 8;
  const char* const first = from - shift / 8;
  uint32_t words[5] = {};
  for (int i = 0; i < 4; ++i) words[i] = LoadWord(first + 4 * i);
  if (shift != 0) words[4] = LoadWord(first + 16);
  Bytes16 result;
  for (int i = 0; i < 4; ++i) {
    const uint64_t two = words[i] | static_cast<uint64_t>(words[i + 1]) << 32;
    result.words[i] = static_cast<uint32_t>(two >> shift);
  }
  return result;
}

// The part of a tile's copy that thread `thread` of `threads` makes: vectors, and bytes at both
// ends.
SYNCLINE_HOST_DEVICE void CopyTile(const CopyPart& tile, uint32_t thread, uint32_t threads) {
  const auto bytes = static_cast<uint32_t>(tile.bytes);
  uint32_t head = (kVectorBytes - Misalignment(tile.to)) % kVectorBytes;
  uint32_t vectors = 0;
  if (head < bytes) {
    const uint32_t shift = Misalignment(tile.from + head);
    if (shift == 0) {
      vectors = (bytes - head) / kVectorBytes;
      for (uint32_t i = thread; i < vectors; i += 4 * threads) {
        Bytes16 loaded[4];
        for (uint32_t j = 0; j < 4; ++j) {
          const uint32_t at = i + j * threads;
          if (at < vectors) loaded[j] = LoadVector(tile.from + head + at * kVectorBytes);
        }
        for (uint32_t j = 0; j < 4; ++j) {
          const uint32_t at = i + j * threads;
          if (at < vectors) StoreVector(loaded[j], tile.to + head + at * kVectorBytes);
        }
      }
    } else {
      // The words that are read must be the tile's.
      if (head < shift % 4) head += kVectorBytes;
      const uint32_t behind = shift % 4 == 0 ? 0 : 4 - shift % 4;
      if (head + behind < bytes) vectors = (bytes - head - behind) / kVectorBytes;
      for (uint32_t i = thread; i < vectors; i += threads) {
        const uint32_t at = head + i * kVectorBytes;
        StoreVector(LoadShifted(tile.from + at), tile.to + at);
      }
    }
  }
  if (vectors == 0) head = 0;
  const uint32_t edges = bytes - vectors * kVectorBytes;
  for (uint32_t i = thread; i < edges; i += threads) {
    const uint32_t at = i < head ? i : i + vectors * kVectorBytes;
    tile.to[at] = tile.from[at];
  }
}

template <uint32_t kCapacity>
struct Copy {
  using Args = CopyArgs<kCapacity>;

  static SYNCLINE_HOST_DEVICE void Run(const Args& args, const Thread& here) {
    const uint32_t tiles = args.first_tile[args.count];
    const uint32_t begin = FirstTile(tiles, here.block, here.blocks);
    const uint32_t end = FirstTile(tiles, here.block + 1, here.blocks);
    if (begin == end) return;
    uint32_t part = FindPart(args.first_tile, args.count, begin);
    for (uint32_t tile = begin; tile < end; ++tile) {
      while (tile >= args.first_tile[part + 1]) ++part;
      CopyTile(TileOf(args.parts[part], tile - args.first_tile[part]), here.thread, here.threads);
    }
  }
};

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_COPY_H_
