#include "backends/shm/board.h"

#include <algorithm>

#include "backends/common/call_words.h"
#include "backends/shm/tuning.h"

namespace syncline {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A power of two: `most`, or as much less as it takes that n of them are no more than `total`.
size_t Share(size_t total, size_t n, size_t most) {
  size_t share = most;
  while (share > 1 && share * n > total) share /= 2;
  return share;
}

constexpr size_t kMiB = 1 << 20;

// The smallest power of two that is no less than `bytes`.
constexpr size_t PowerFor(size_t bytes) {
  size_t power = 1;
  while (power < bytes) power *= 2;
  return power;
}

}  // namespace

Sizes::Sizes(int size) {
  const size_t n = static_cast<size_t>(size);
  const Tuning tuning = TuningFor(size);
  tables = Share(8 * kMiB, n, 2 * kMiB);
  eager = std::min(tables / 4, tuning.eager);
  near = std::min<size_t>(eager, 4 << 10);
  // Has a cache line for each of the other ranks, however many there are: see BlocksOf.
  piece = std::max(Share(16 * kMiB, kDepth * n, tuning.most_piece), PowerFor((n - 1) * kCacheLine));
  least_piece = std::min(piece, tuning.least_piece);
  in_place = tuning.in_place;
  in_place_piece = std::max(least_piece, tuning.in_place_piece);
  parcel = Share(8 * kMiB, kParcels * n, 64 << 10);
  streams = std::clamp(size - 1, 1, kStreams);
  stream = Share(16 * kMiB, n * streams, kMiB);
  letters = std::max<size_t>(Share(4 * kMiB, n * n * sizeof(Letter), 1024), 8);
}

Board::Layout::Layout(int size) : sizes(size) {
  size_t at = RoundUp(sizeof(RankArea), kPage);
  const auto reserve = [&at](size_t bytes) {
    const size_t here = at;
    at += RoundUp(bytes, kPage);
    return here;
  };
  call = reserve(MaxCallWords(size) * sizeof(int64_t));
  tables = reserve(2 * sizes.near + sizes.tables);
  pieces = reserve(kDepth * sizes.piece);
  results = reserve(kDepth *
                    (sizes.piece / size + (sizes.piece / sizes.least_piece + 1) * 2 * kCacheLine));
  parcels = reserve(kParcels * sizes.parcel);
  streams = reserve(sizes.streams * sizes.stream);
  area_bytes = at;
  entrances = RoundUp(sizeof(Verdict), kCacheLine);
  areas = RoundUp(entrances + sizeof(Entrance) * size, kPage);
  letters = areas + area_bytes * size;
  total = letters + static_cast<size_t>(size) * size * sizes.letters * sizeof(Letter);
}

std::array<Board::Range, 2> Board::OwnOf(int rank, int size) {
  const Layout layout(size);
  const size_t letters = size * layout.sizes.letters * sizeof(Letter);
  return {{{layout.areas + rank * layout.area_bytes, layout.area_bytes},
           {layout.letters + rank * letters, letters}}};
}

}  // namespace syncline
