// Memory that a socket is to send or to fill, in order.
#ifndef SYNCLINE_BACKENDS_COMMON_BYTE_QUEUE_H_
#define SYNCLINE_BACKENDS_COMMON_BYTE_QUEUE_H_

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tls/stream.h"

namespace syncline::backends {

// What one system call on a socket has come to. After kEnded errno says why.
enum class Moved { kSome, kNothing, kEnded };

// Borrows the memory. Not thread-safe.
class ByteQueue {
 public:
  // One system call moves at most so many pieces and bytes, so that the other direction and other
  // connections get their turn, and what was sent last is still in the caches when it is received.
  static constexpr size_t kBurstPieces = 16;
  static constexpr size_t kBurstBytes = 256 << 10;

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

 private:
  Moved Move(tls::Stream& stream, ssize_t (tls::Stream::*call)(const iovec*, size_t)) {
    if (is_empty()) return Moved::kNothing;
    iovec burst[kBurstPieces];
    size_t count = 0, bytes = 0;
    for (size_t i = first_; i < pieces_.size() && count < kBurstPieces && bytes < kBurstBytes;
         ++i) {
      burst[count] = {pieces_[i].iov_base, std::min(pieces_[i].iov_len, kBurstBytes - bytes)};
      bytes += burst[count++].iov_len;
    }
    const ssize_t moved = (stream.*call)(burst, count);
    if (moved < 0) {
      const bool is_full = errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
      return is_full ? Moved::kNothing : Moved::kEnded;
    }
    Consume(static_cast<size_t>(moved));
    return Moved::kSome;
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
