// A connected socket whose bytes are encrypted, or not.
#ifndef SYNCLINE_CORE_TLS_STREAM_H_
#define SYNCLINE_CORE_TLS_STREAM_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/unique_fd.h"
#include "core/base/unshared_fd.h"
#include "core/tls/session.h"

namespace syncline::tls {

// Not thread-safe, except fd(). Children of this process do not share the socket, so that it ends
// with this process.
class Stream {
 public:
  Stream() = default;
  explicit Stream(base::UniqueFd socket, std::unique_ptr<Session> session = nullptr)
      : socket_(std::move(socket)), session_(std::move(session)) {}

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }
  bool is_encrypted() const { return session_ != nullptr; }
  // Requires !is_encrypted().
  base::UniqueFd TakeSocket() { return socket_.Share(); }

  // As sendmsg(2) and recvmsg(2), without a wait; but the end of the stream is -1 with ECONNRESET.
  // After a Send that returns EAGAIN the next one must begin with the same bytes; after a Receive
  // that does, whatever else can be read will wake who polls for the socket.
  ssize_t Send(const iovec* pieces, size_t count) {
    if (session_ != nullptr) return session_->Send(fd(), pieces, count);
    const size_t bytes = BytesOf(pieces, count);
    if (bytes <= kFewBytes) {
      char few[kFewBytes];
      size_t at = 0;
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(few + at, pieces[i].iov_base, pieces[i].iov_len);
        at += pieces[i].iov_len;
      }
      return send(fd(), few, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t Receive(const iovec* pieces, size_t count) {
    if (session_ != nullptr) return session_->Receive(fd(), pieces, count);
    const size_t bytes = BytesOf(pieces, count);
    ssize_t received;
    if (count == 1) {
      received = recv(fd(), pieces->iov_base, pieces->iov_len, MSG_DONTWAIT);
    } else if (bytes <= kFewBytes) {
      char few[kFewBytes];
      received = recv(fd(), few, bytes, MSG_DONTWAIT);
      for (ssize_t at = 0; at < received; ++pieces) {
        const size_t part = std::min(pieces->iov_len, static_cast<size_t>(received - at));
        std::memcpy(pieces->iov_base, few + at, part);
        at += static_cast<ssize_t>(part);
      }
    } else {
      msghdr message = {};
      message.msg_iov = const_cast<iovec*>(pieces);
      message.msg_iovlen = count;
      received = recvmsg(fd(), &message, MSG_DONTWAIT);
    }
    if (received != 0) return received;
    errno = ECONNRESET;
    return -1;
  }

 private:
  // For so many bytes the kernel takes longer over several pieces than a copy takes.
  static constexpr size_t kFewBytes = 1024;

  static size_t BytesOf(const iovec* pieces, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += pieces[i].iov_len;
    return bytes;
  }

  base::UnsharedFd socket_;
  std::unique_ptr<Session> session_;
};

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_STREAM_H_
