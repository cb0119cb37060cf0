#include "launch/output/fd_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace syncline {
namespace {

constexpr size_t kChunk = 64 << 10;

bool Writable(int fd, absl::Duration timeout) {
  pollfd ready = {fd, POLLOUT, 0};
  return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0;
}

}  // namespace

void FdSink::Write(absl::string_view text) {
  if (broken_ || text.empty()) return;
  Keep(text);
  TryFlush();
  if (pending_size_ > max_pending_) full_ = true;
}

void FdSink::Keep(absl::string_view text) {
  if (pending_.empty() || pending_.back().size() + text.size() > kChunk) pending_.emplace_back();
  pending_.back().append(text.data(), text.size());
  pending_size_ += text.size();
}

void FdSink::TryFlush() {
  // O_NONBLOCK would hold for all processes that share the descriptor. A descriptor that is ready
  // takes PIPE_BUF bytes at once.
  while (pending() && Writable(fd_, absl::ZeroDuration())) {
    const absl::string_view rest = absl::string_view(pending_.front()).substr(first_);
    const ssize_t result = write(fd_, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
    if (result >= 0) {
      Taken(static_cast<size_t>(result));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      Break(errno);
    }
  }
}

void FdSink::Taken(size_t size) {
  first_ += size;
  pending_size_ -= size;
  if (first_ == pending_.front().size()) {
    pending_.pop_front();
    first_ = 0;
  }
  if (pending_size_ <= max_pending_ / 2) full_ = false;
}

void FdSink::Break(int error) {
  broken_ = true;
  reader_gone_ = error == EPIPE;
  full_ = false;
  pending_.clear();
  first_ = 0;
  pending_size_ = 0;
}

void FdSink::Flush(absl::Duration patience) {
  while (pending() && Writable(fd_, patience)) TryFlush();
}

}  // namespace syncline
