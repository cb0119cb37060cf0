#include "launch/output/fd_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace syncline {
namespace {

bool Writable(int fd, absl::Duration timeout) {
  pollfd ready = {fd, POLLOUT, 0};
  return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0;
}

}  // namespace

void FdSink::Write(absl::string_view text) {
  if (broken_) return;
  pending_.append(text.data(), text.size());
  TryFlush();
}

void FdSink::TryFlush() {
  size_t written = 0;
  // O_NONBLOCK would hold for all processes that share the descriptor. A descriptor that is ready
  // takes PIPE_BUF bytes at once.
  while (written < pending_.size() && Writable(fd_, absl::ZeroDuration())) {
    const size_t size = std::min<size_t>(pending_.size() - written, PIPE_BUF);
    const ssize_t result = write(fd_, pending_.data() + written, size);
    if (result >= 0) {
      written += static_cast<size_t>(result);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
      reader_gone_ = errno == EPIPE;
      pending_.clear();
      return;
    }
  }
  pending_.erase(0, written);
}

void FdSink::Flush(absl::Duration patience) {
  while (pending() && Writable(fd_, patience)) TryFlush();
}

}  // namespace syncline
