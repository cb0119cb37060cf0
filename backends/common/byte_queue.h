// Memory that a socket is to send or to fill, in order.
#ifndef SYNCLINE_BACKENDS_COMMON_BYTE_QUEUE_H_
#define SYNCLINE_BACKENDS_COMMON_BYTE_QUEUE_H_

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/tls/stream.h"

namespace syncline::backends {

// What one system call on a socket has come to. After kEnded errno says why.
enum class Moved { kSome, kNothing, kEnded };

// Borrows the memory. Not thread-safe.
class ByteQueue {
 public:
  // One system call moves at most so many pieces and bytes, so that the other direction and other
  // connections get their turn, and what was sent last is still in the caches when it is received.
  // Not fewer: between two calls of 256 KiB the kernel loses some 20 us, as it handles what the
  // peer has acknowledged while that waits for the rest.
  static constexpr size_t kBurstPieces = 16;
  static constexpr size_t kBurstBytes = (1 << 20) + (4 << 10);  // With what goes before 1 MiB.

  void Add(void* data, size_t bytes) {
    if (bytes == 0) return;
    // A queue that never gets empty must not grow.
    if (is_empty()) {
      Clear();
    } else if (first_ >= kBurstPieces && first_ >= pieces_.size() / 2) {
      pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
    pieces_.push_back({data, bytes});
    given_ += bytes;
  }
  void Clear() {
    pieces_.clear();
    first_ = 0;
  }

  bool is_empty() const { return first_ == pieces_.size(); }
  uint64_t given() const { return given_; }  // Bytes, ever.
  uint64_t moved() const { return moved_; }

  // Without a wait.
  Moved Send(tls::Stream& stream) { return Move(stream, &tls::Stream::Send); }
  // Moves at most what has been added.
  Moved Receive(tls::Stream& stream) { return Move(stream, &tls::Stream::Receive); }

  // As Receive; what comes beyond what has been added goes to `room`, which becomes what has come
  // to it. `is_drained` says whether the system call got less than there was room for.
  Moved ReceiveAhead(tls::Stream& stream, absl::Span<std::byte>& room, bool& is_drained) {
    iovec burst[kBurstPieces + 1];
    auto [count, bytes] = FillBurst(burst);
    if (bytes < kBurstBytes && count == pieces_.size() - first_) {
      burst[count++] = {room.data(), room.size()};
    } else {
      room = {};
    }
    const ssize_t moved = stream.Receive(burst, count);
    is_drained = moved < static_cast<ssize_t>(bytes + room.size());
    if (moved < 0) return WhyNot();
    const size_t added = std::min(static_cast<size_t>(moved), bytes);
    Consume(added);
    room = room.first(static_cast<size_t>(moved) - added);
    return Moved::kSome;
  }
  // Takes what was received otherwise, as Receive would. Returns how many of the bytes it
  // had room for.
  size_t Fill(const std::byte* data, size_t bytes) {
    size_t taken = 0;
    while (taken < bytes && !is_empty()) {
      const size_t part = std::min(bytes - taken, pieces_[first_].iov_len);
      std::memcpy(pieces_[first_].iov_base, data + taken, part);
      Consume(part);
      taken += part;
    }
    return taken;
  }

  // What a system call has come to that has failed: by errno.
  static Moved WhyNot() {
    const bool is_full = errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
    return is_full ? Moved::kNothing : Moved::kEnded;
  }

 private:
  Moved Move(tls::Stream& stream, ssize_t (tls::Stream::*call)(const iovec*, size_t)) {
    if (is_empty()) return Moved::kNothing;
    iovec burst[kBurstPieces];
    const size_t count = FillBurst(burst).first;
    const ssize_t moved = (stream.*call)(burst, count);
    if (moved < 0) return WhyNot();
    Consume(static_cast<size_t>(moved));
    return Moved::kSome;
  }

  // What the next system call is to move: how many pieces, and of how many bytes.
  std::pair<size_t, size_t> FillBurst(iovec* burst) const {
    size_t count = 0, bytes = 0;
    for (size_t i = first_; i < pieces_.size() && count < kBurstPieces && bytes < kBurstBytes;
         ++i) {
      burst[count] = {pieces_[i].iov_base, std::min(pieces_[i].iov_len, kBurstBytes - bytes)};
      bytes += burst[count++].iov_len;
    }
    return {count, bytes};
  }

  void Consume(size_t bytes) {
    moved_ += bytes;
    while (bytes > 0) {
      iovec& piece = pieces_[first_];
      const size_t part = std::min(bytes, piece.iov_len);
      piece = {static_cast<char*>(piece.iov_base) + part, piece.iov_len - part};
      if (piece.iov_len == 0) ++first_;
      bytes -= part;
    }
  }

  std::vector<iovec> pieces_;
  size_t first_ = 0;  // The pieces before this one have been moved.
  uint64_t given_ = 0, moved_ = 0;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_BYTE_QUEUE_H_
