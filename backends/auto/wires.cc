#include "backends/auto/wires.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/interrupt.h"
#include "core/base/stall.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// At most so much at once, so that what comes does not wait for what goes.
constexpr size_t kBurst = 256 << 10;
constexpr size_t kParts = 8;

}  // namespace

void Wires::Queue::Add(void* data, size_t bytes) {
  if (bytes == 0) return;
  if (is_empty()) {
    parts.clear();
    first = 0;
  }
  parts.push_back({data, bytes});
  given += bytes;
}

size_t Wires::Queue::Next(absl::Span<iovec> out) const {
  size_t count = 0, bytes = 0;
  for (size_t i = first; i < parts.size() && count < out.size() && bytes < kBurst; ++i) {
    out[count] = {parts[i].iov_base, std::min(parts[i].iov_len, kBurst - bytes)};
    bytes += out[count++].iov_len;
  }
  return count;
}

void Wires::Queue::Take(size_t bytes) {
  done += bytes;
  while (bytes > 0) {
    iovec& part = parts[first];
    const size_t taken = std::min(bytes, part.iov_len);
    part = {static_cast<char*>(part.iov_base) + taken, part.iov_len - taken};
    if (part.iov_len == 0) ++first;
    bytes -= taken;
  }
}

void Wires::Send(int to, const void* data, size_t bytes) {
  links_[to].out.Add(const_cast<void*>(data), bytes);  // It is only read.
}

void Wires::Receive(int from, void* data, size_t bytes) { links_[from].in.Add(data, bytes); }

absl::Status Wires::AwaitSent(int to, uint64_t bytes, const Deadline& deadline) {
  return Pump([&] { return links_[to].out.done >= bytes; }, deadline);
}

absl::Status Wires::AwaitReceived(int from, uint64_t bytes, const Deadline& deadline) {
  return Pump([&] { return links_[from].in.done >= bytes; }, deadline);
}

absl::Status Wires::AwaitAll(const Deadline& deadline) {
  return Pump(
      [&] {
        return std::all_of(links_.begin(), links_.end(), [](const Link& link) {
          return link.in.is_empty() && link.out.is_empty();
        });
      },
      deadline);
}

absl::Status Wires::Progress() {
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved, Move());
    if (!has_moved) return absl::OkStatus();
  }
}

absl::Status Wires::Pump(absl::FunctionRef<bool()> is_done, const Deadline& deadline) {
  while (!is_done()) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved, Move());
    if (has_moved) continue;
    if (deadline.Expired()) {
      return TimeoutError(
          absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
    }
    AwaitReady(std::min(deadline.Remaining(), kInterruptInterval));
    StallWatch::Look();
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Wires::Move() {
  bool has_moved = false;
  for (Link& link : links_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_gone, Push(link));
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_come, Pull(link));
    if (has_gone || has_come) has_moved = true;
  }
  return has_moved;
}

absl::StatusOr<bool> Wires::Push(Link& link) {
  if (link.out.is_empty()) return false;
  iovec parts[kParts];
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = link.out.Next(absl::MakeSpan(parts));
  const ssize_t sent = sendmsg(link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return Closed(link, std::strerror(errno));
  }
  link.out.Take(sent);
  return sent > 0;
}

absl::StatusOr<bool> Wires::Pull(Link& link) {
  if (link.in.is_empty()) return false;
  iovec parts[kParts];
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = link.in.Next(absl::MakeSpan(parts));
  const ssize_t received = recvmsg(link.socket.get(), &message, MSG_DONTWAIT);
  if (received == 0) return Closed(link, "it was closed");
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return Closed(link, std::strerror(errno));
  }
  link.in.Take(received);
  return true;
}

void Wires::AwaitReady(absl::Duration limit) const {
  absl::InlinedVector<pollfd, 8> entries;
  for (const Link& link : links_) {
    const int out = link.out.is_empty() ? 0 : POLLOUT, in = link.in.is_empty() ? 0 : POLLIN;
    if ((out | in) != 0) entries.push_back({link.socket.get(), static_cast<short>(out | in), 0});
  }
  const absl::Duration bounded = std::min(limit, absl::Seconds(60));
  poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(bounded)) + 1);
}

absl::Status Wires::Closed(const Link& link, absl::string_view why) const {
  if (is_aborted_.load()) return NetworkError("the connections were closed");
  return NetworkError(absl::StrCat("the connection to ", link.name, " has ended: ", why));
}

void Wires::Abort() {
  is_aborted_.store(true);
  for (const Link& link : links_) {
    if (link.socket.valid()) shutdown(link.socket.get(), SHUT_RDWR);
  }
}

}  // namespace syncline
