// How the shared memory of a group is laid out, and who writes what.
//
// Everything is zero at first. Counters only grow. What one rank writes and others read stands on
// cache lines of its own.
#ifndef SYNCLINE_BACKENDS_SHM_BOARD_H_
#define SYNCLINE_BACKENDS_SHM_BOARD_H_

#include <sched.h>

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

// A message on its way from one rank to another: written by the sender while kFree, then by the
// receiver while kPosted.
struct alignas(kCacheLine) Letter {
  enum State : uint32_t {
    kFree,
    kPosted,     // A receive may take it.
    kTaken,      // One has; the sender streams the data, unless they have come with the letter:
    kStreaming,  // from `start` on.
    kReceived,
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
  uint32_t dtype;
  std::atomic<uint32_t> used;  // Of the first of a pair: how many, from it on, may hold something.
  char payload[kPayload];
};
static_assert(sizeof(Letter) == kCacheLine, "one line carries a small message");

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

  Doorbell post;  // Rings, by others too, when a letter from or to this rank changes.
  alignas(kCacheLine) std::atomic<uint64_t> streamed;
  alignas(kCacheLine) std::atomic<uint64_t> stream_read;  // By the receiver.

  alignas(kCacheLine) std::atomic<uint32_t> joined;
  std::atomic<uint32_t> left;         // `reason` is valid.
  std::atomic<uint64_t> explained;    // The number of the collective that `call` describes.
  std::atomic<uint32_t> needs_fence;  // See vigil.h.
  cpu_set_t cores;                    // Where the rank may run. Valid once it has joined.
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

// The sizes of buffers, by the number of ranks: what a group of up to 256 ranks takes stays below
// 90 MiB.
struct Sizes {
  explicit Sizes(int size);

  // The size of the pieces in which to move `bytes`, up to `most` at a time: several, so that ranks
  // work at the same time, but not too small.
  size_t PieceOf(size_t bytes, size_t most) const {
    size_t piece = most;
    while (piece > least_piece && bytes / piece < 4) piece /= 2;
    return piece;
  }

  size_t eager;        // Bytes that a rank may lay for an operation that needs no pieces;
  size_t near;         // of these, those that are short;
  size_t tables;       // bytes of the ring for the others, which takes three.
  size_t least_piece;  // Bytes of the smallest pieces,
  size_t piece;        // and of the largest. Their ring takes kDepth of these.
  size_t parcel;       // Bytes of each of the kParcels buffers for messages that are not long,
  size_t stream;       // and of the one for those that are.
  size_t letters;      // From one rank to one other, at a time.
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

  int size() const { return size_; }
  const Sizes& sizes() const { return layout_.sizes; }

  Verdict& verdict() const { return *reinterpret_cast<Verdict*>(data_); }
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
  char* stream(int rank) const { return AreaOf(rank) + layout_.stream; }

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
    size_t call, tables, pieces, results, parcels, stream, area_bytes;
    size_t areas, letters, total;
  };

  char* AreaOf(int rank) const { return data_ + layout_.areas + rank * layout_.area_bytes; }

  char* data_;
  int size_;
  Layout layout_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_BOARD_H_
