// How the shared memory of a group is laid out, and who writes what.
//
// Everything is zero at first. Counters only grow. What one rank writes and others read stands on
// cache lines of its own.
#ifndef SYNCLINE_BACKENDS_SHM_BOARD_H_
#define SYNCLINE_BACKENDS_SHM_BOARD_H_

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace syncline {

inline constexpr size_t kCacheLine = 64;

// Where those sleep who wait for something that one rank will do. See vigil.h.
struct alignas(kCacheLine) Doorbell {
  std::atomic<uint32_t> rings;  // A futex.
  std::atomic<uint32_t> sleepers;
};

// What a rank tells of its current collective, with the data if that is short. Two calls go
// together if, and only if, their `words` are equal (but see all_to_all in meeting.h).
struct alignas(kCacheLine) Header {
  static constexpr size_t kPayload = 24;

  struct Content {
    uint64_t words[4];
    char payload[kPayload];
  };

  std::atomic<uint64_t> number;  // Of the collective, from 1. The rest is valid for this one.
  Content content;
};
static_assert(sizeof(Header) == kCacheLine, "one line carries a small operation");

// What a rank tells of what it has for a collective that lays nothing: in the payload of the
// header.
struct Offer {
  static constexpr uint32_t kIsNew = 1;     // Peers must map the memory: see Introduction.
  static constexpr uint32_t kHasFreed = 2;  // Some memory is gone: likewise.

  uint64_t memory;     // As in SharedPlace; 0 if peers cannot map what this rank has.
  uint64_t offset;     // Of its first byte there.
  int32_t descriptor;  // Of the memory, in the rank's process.
  uint32_t flags;
};
static_assert(sizeof(Offer) == Header::kPayload, "fits");

// What an Offer has no room for.
struct alignas(kCacheLine) Introduction {
  static constexpr size_t kFreed = 12;

  uint64_t device, inode, size;  // Of new memory.
  uint64_t freed_count;
  uint64_t freed[kFreed];  // Numbers of memories that will not be offered again.
};
static_assert(sizeof(Introduction) == 2 * kCacheLine, "has no padding");

// A message on its way from one rank to another: written by the sender while kFree, then by the
// receiver while kPosted. Those from one rank to another form a chain, in the order of sending.
struct alignas(kCacheLine) Letter {
  enum State : uint32_t {
    kFree,
    kClaimed,  // By a send.
    kPosted,
    kTaken,      // If the data do not come with it: by a receive. The sender streams them,
    kStreaming,  // from `start` on.
    kReceived,   // The data that came with it; the sender may use it again.
  };
  static constexpr size_t kPayload = 24;
  static constexpr uint64_t kNoParcel = ~uint64_t{0};

  // Of a letter whose data are longer than kPayload: the parcel with all of them, or kNoParcel.
  uint64_t parcel() const {
    uint64_t parcel;
    std::memcpy(&parcel, payload, sizeof(parcel));
    return parcel;
  }
  void set_parcel(uint64_t parcel) { std::memcpy(payload, &parcel, sizeof(parcel)); }

  std::atomic<uint32_t> state;
  std::atomic<int32_t> tag;
  uint64_t sequence;
  int64_t count;
  uint64_t start;
  uint16_t dtype;
  uint16_t stream;  // Which of the sender's streams carries the data.
  uint32_t next;    // The index of the letter that will follow. The first of all has index 0.
  char payload[kPayload];
};
static_assert(sizeof(Letter) == kCacheLine, "one line carries a small message");

// How far a stream has come, in bytes from the group's beginning: one message after another.
struct StreamProgress {
  alignas(kCacheLine) std::atomic<uint64_t> written;
  alignas(kCacheLine) std::atomic<uint64_t> read;  // Written by the receiver.
};

// Long messages from one rank at a time, at most, each to another rank.
inline constexpr int kStreams = 8;

// A call, for messages: what it was, and its number. A torn one makes a wrong message.
struct Note {
  std::atomic<uint64_t> what;  // See call_notes.h.
  std::atomic<uint64_t> sequence;
};

// What a rank writes, but for what is said. Followed by its buffers.
struct RankArea {
  Header headers[2];  // That of the collective with number n is headers[n % 2].
  Doorbell done;      // Rings after each of the counters and headers.

  // How many pieces of pipelined collectives, in all: it has laid out, reduced a part of, and is
  // done with.
  alignas(kCacheLine) std::atomic<uint64_t> written;
  alignas(kCacheLine) std::atomic<uint64_t> reduced;
  alignas(kCacheLine) std::atomic<uint64_t> read;

  // Of collectives in place: what goes with the Offer in headers[n % 2]; twice the number of the
  // last for which this rank has mapped what is new, odd if it could not; and how many steps, in
  // all, it has made.
  Introduction introductions[2];
  alignas(kCacheLine) std::atomic<uint64_t> mapped;
  alignas(kCacheLine) std::atomic<uint64_t> steps;

  Doorbell post;  // Rings, by others too, when a letter from or to this rank changes.
  StreamProgress streams[kStreams];

  alignas(kCacheLine) std::atomic<uint32_t> left;  // `reason` is valid.
  std::atomic<uint64_t> explained;    // The number of the collective that `call` describes.
  std::atomic<uint32_t> needs_fence;  // See vigil.h.
  cpu_set_t cores;                    // Where the rank may run.
  char reason[512];

  alignas(kCacheLine) std::atomic<uint64_t> finished;  // Collectives.
  std::atomic<uint32_t> messages_under_way;
  Note message;  // The last that was begun.
  Note last;     // The last call that has finished.
};

// The first cause of a failure, for all ranks.
struct Verdict {
  enum State : uint32_t { kNone, kBeingWritten, kWritten };

  alignas(kCacheLine) std::atomic<uint32_t> state;
  uint32_t kind;  // ErrorKind
  uint32_t rank;  // That wrote it.
  uint32_t size;
  char text[4096];
};

// Where a rank comes in. Its area must not be touched before, not even by itself: there may be no
// memory for it.
struct alignas(kCacheLine) Entrance {
  Doorbell door;  // Rings once it has joined.
  std::atomic<uint32_t> joined;
};

// The sizes of buffers, by the number of ranks: what a group of up to 256 ranks takes stays below
// 90 MiB, that of 1,024 below 1 GiB.
struct Sizes {
  explicit Sizes(int size);

  // The size of the pieces in which to move `bytes`, up to `most` at a time: several, so that ranks
  // work at the same time, but not too small.
  size_t PieceOf(size_t bytes, size_t most) const {
    size_t piece = most;
    while (piece > least_piece && bytes / piece < 4) piece /= 2;
    return piece;
  }

  // How blocks of up to `bytes`, one for each of `others` ranks, move: in pieces of `piece` bytes
  // with `room` for each rank, at least a cache line.
  struct Blocks {
    size_t piece, room;
  };
  Blocks BlocksOf(size_t bytes, size_t others) const {
    size_t piece = PieceOf(bytes * others, this->piece);
    while (piece < others * kCacheLine) piece *= 2;  // No more than the largest, which has room.
    return {piece, piece / others / kCacheLine * kCacheLine};
  }

  size_t eager;           // Bytes that a rank may lay for an operation that needs no pieces;
  size_t near;            // of these, those that are short;
  size_t tables;          // bytes of the ring for the others, which takes three.
  size_t least_piece;     // Bytes of the smallest pieces,
  size_t piece;           // and of the largest. Their ring takes kDepth of these.
  size_t in_place;        // Bytes from which on shared tensors are read in place,
  size_t in_place_piece;  // and of the largest pieces of these.
  size_t parcel;          // Bytes of each of the kParcels buffers for messages that are not long,
  size_t stream;          // and of each of those
  int streams;            // for messages that are: one for each other rank, up to kStreams.
  size_t letters;         // From one rank to one other, at a time.
};

// Pieces that a rank may be ahead of the slowest.
inline constexpr int kDepth = 4;

// Messages that are not long, from one rank at a time.
inline constexpr int kParcels = 32;

// A view of a group's segment. Copyable.
class Board {
 public:
  Board(char* data, int size) : data_(data), size_(size), layout_(size) {}

  // Bytes of the segment of a group of `size` ranks.
  static size_t BytesFor(int size) { return Layout(size).total; }

  // What rank 0 reserves before others come, and what each rank reserves before it joins, so that
  // it lies on its own NUMA node.
  struct Range {
    size_t offset, size;
  };
  static Range CommonOf(int size) { return {0, Layout(size).areas}; }
  static std::array<Range, 2> OwnOf(int rank, int size);

  int size() const { return size_; }
  const Sizes& sizes() const { return layout_.sizes; }

  Verdict& verdict() const { return *reinterpret_cast<Verdict*>(data_); }
  Entrance& entrance(int rank) const {
    return reinterpret_cast<Entrance*>(data_ + layout_.entrances)[rank];
  }
  bool has_joined(int rank) const {
    return entrance(rank).joined.load(std::memory_order_acquire) != 0;
  }
  RankArea& area(int rank) const { return *reinterpret_cast<RankArea*>(AreaOf(rank)); }
  Header& header(int rank, uint64_t number) const { return area(rank).headers[number % 2]; }

  // The buffers of a rank; for the offsets see rings.h. Results, which begin on cache lines, are
  // those of its parts of pieces.
  char* table(int rank, size_t offset) const { return AreaOf(rank) + layout_.tables + offset; }
  char* piece(int rank, size_t offset) const { return AreaOf(rank) + layout_.pieces + offset; }
  char* result(int rank, size_t offset) const { return AreaOf(rank) + layout_.results + offset; }
  char* parcel(int rank, uint64_t index) const {
    return AreaOf(rank) + layout_.parcels + index * sizes().parcel;
  }
  char* stream(int rank, int index) const {
    return AreaOf(rank) + layout_.streams + index * sizes().stream;
  }

  // Room for the words of a call; see call_words.h.
  int64_t* call(int rank) const { return reinterpret_cast<int64_t*>(AreaOf(rank) + layout_.call); }

  // Of those from `src` to `dst`.
  Letter& letter(int src, int dst, size_t index) const {
    const size_t pair = static_cast<size_t>(src) * size_ + dst;
    return reinterpret_cast<Letter*>(data_ + layout_.letters)[pair * sizes().letters + index];
  }

 private:
  // Offsets: those of buffers from the beginning of a rank's area, the others from that of all.
  struct Layout {
    explicit Layout(int size);

    Sizes sizes;
    size_t call, tables, pieces, results, parcels, streams, area_bytes;
    size_t entrances, areas, letters, total;
  };

  char* AreaOf(int rank) const { return data_ + layout_.areas + rank * layout_.area_bytes; }

  char* data_;
  int size_;
  Layout layout_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_BOARD_H_
