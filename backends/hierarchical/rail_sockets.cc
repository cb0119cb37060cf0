#include "backends/hierarchical/rail_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/rank_acceptor.h"
#include "backends/hierarchical/thresholds.h"
#include "core/base/stall.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::hierarchical {

// A rank connects to the members before it and accepts those after it. No ranks wait for each other
// in a circle: the kernel completes connections to a rank that has not called accept yet.
absl::StatusOr<std::unique_ptr<RailSockets>> RailSockets::Connect(const Listener& listener,
                                                                  absl::Span<const Member> members,
                                                                  int own,
                                                                  const Deadline& deadline) {
  std::unique_ptr<RailSockets> sockets(new RailSockets(members.size()));
  std::vector<Link>& links = sockets->links_;
  for (size_t i = 0; i < members.size(); ++i) links[i].name = members[i].name;
  for (int to = 0; to < own; ++to) {
    absl::StatusOr<base::UniqueFd> socket = ConnectToListener(members[to].endpoint, own, deadline);
    if (!socket.ok()) return Annotate(socket.status(), members[to].name);
    links[to].socket = *std::move(socket);
  }
  SYNCLINE_RETURN_IF_ERROR(sockets->AcceptMembers(listener, own, deadline));
  for (const Link& link : links) {
    // Otherwise the kernel would hold back a short message until the one before is acknowledged.
    const int on = 1;
    if (link.socket.valid()) {
      setsockopt(link.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
  }
  return sockets;
}

absl::Status RailSockets::AcceptMembers(const Listener& listener, int own,
                                        const Deadline& deadline) {
  const int size = static_cast<int>(links_.size());
  const int expected = size - 1 - own;
  backends::RankAcceptor acceptor(listener.socket(), std::string(listener.secret()), expected);
  for (int connected = 0; connected < expected;) {
    absl::StatusOr<backends::RankAcceptor::Connection> connection = acceptor.Accept(deadline);
    if (!connection.ok() && KindOf(connection.status()) == ErrorKind::kTimeout) {
      std::vector<std::string> late;
      for (int from = own + 1; from < size; ++from) {
        if (!links_[from].socket.valid()) late.push_back(links_[from].name);
      }
      return TimeoutError(absl::StrCat(absl::StrJoin(late, ", "), " did not connect within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    SYNCLINE_RETURN_IF_ERROR(connection.status());
    // The number comes from the peer. One that cannot be right is dropped with its connection.
    const int from = connection->rank;
    if (from <= own || from >= size || links_[from].socket.valid()) continue;
    links_[from].socket = std::move(connection->socket);
    ++connected;
  }
  return absl::OkStatus();
}

void RailSockets::Queue::Add(void* data, size_t bytes) {
  if (bytes == 0) return;
  if (is_empty()) {
    pieces.clear();
    first = 0;
  }
  pieces.push_back({data, bytes});
  given += bytes;
}

size_t RailSockets::Queue::Next(absl::Span<iovec> out) const {
  size_t count = 0, bytes = 0;
  for (size_t i = first; i < pieces.size() && count < out.size() && bytes < kSocketBurstBytes;
       ++i) {
    out[count] = {pieces[i].iov_base, std::min(pieces[i].iov_len, kSocketBurstBytes - bytes)};
    bytes += out[count++].iov_len;
  }
  return count;
}

void RailSockets::Queue::Consume(size_t bytes) {
  done += bytes;
  while (bytes > 0) {
    iovec& piece = pieces[first];
    const size_t moved = std::min(bytes, piece.iov_len);
    piece = {static_cast<char*>(piece.iov_base) + moved, piece.iov_len - moved};
    if (piece.iov_len == 0) ++first;
    bytes -= moved;
  }
}

void RailSockets::Send(int to, const void* data, size_t bytes) {
  // An iovec is not const, but the memory is only read.
  links_[to].out.Add(const_cast<void*>(data), bytes);
}

void RailSockets::Receive(int from, void* data, size_t bytes) { links_[from].in.Add(data, bytes); }

absl::Status RailSockets::AwaitSent(int to, uint64_t bytes, const Deadline& deadline) {
  return Await([&] { return links_[to].out.done >= bytes; }, deadline);
}

absl::Status RailSockets::AwaitReceived(int from, uint64_t bytes, const Deadline& deadline) {
  return Await([&] { return links_[from].in.done >= bytes; }, deadline);
}

absl::Status RailSockets::AwaitAll(const Deadline& deadline) {
  return Await(
      [&] {
        return std::all_of(links_.begin(), links_.end(), [](const Link& link) {
          return link.in.is_empty() && link.out.is_empty();
        });
      },
      deadline);
}

absl::Status RailSockets::MakeProgress() {
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved, MoveAll());
    if (!has_moved) return absl::OkStatus();
  }
}

absl::Status RailSockets::Await(absl::FunctionRef<bool()> is_done, const Deadline& deadline) {
  // All connections move, not only the awaited one: the peer may have to get its bytes to this rank
  // before it gets to send the awaited ones.
  while (!is_done()) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved, MoveAll());
    if (has_moved) continue;
    if (deadline.Expired()) {
      return TimeoutError(
          absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
    }
    // In slices, since nothing wakes poll(2) when this thread is interrupted or stalls.
    Poll(std::min(deadline.Remaining(), kInterruptInterval));
    base::StallWatch::Look();
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RailSockets::MoveAll() {
  bool has_moved = false;
  for (Link& link : links_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_sent, SendSome(link));
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_received, ReceiveSome(link));
    if (has_sent || has_received) has_moved = true;
  }
  return has_moved;
}

absl::StatusOr<bool> RailSockets::SendSome(Link& link) {
  if (link.out.is_empty()) return false;
  iovec pieces[kSocketBurstPieces];
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = link.out.Next(absl::MakeSpan(pieces));
  const ssize_t sent = sendmsg(link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return ConnectionEnded(link, std::strerror(errno));
  }
  link.out.Consume(sent);
  return sent > 0;
}

// An idle connection is not read, so its end shows only in the next call that uses it. Until then
// Gloo's watch is the one to find that a peer has gone.
absl::StatusOr<bool> RailSockets::ReceiveSome(Link& link) {
  if (link.in.is_empty()) return false;
  iovec pieces[kSocketBurstPieces];
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = link.in.Next(absl::MakeSpan(pieces));
  const ssize_t received = recvmsg(link.socket.get(), &message, MSG_DONTWAIT);
  if (received == 0) return ConnectionEnded(link, "it was closed");
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return ConnectionEnded(link, std::strerror(errno));
  }
  link.in.Consume(received);
  return true;
}

void RailSockets::Poll(absl::Duration limit) const {
  absl::InlinedVector<pollfd, 8> entries;
  for (const Link& link : links_) {
    const int out = link.out.is_empty() ? 0 : POLLOUT, in = link.in.is_empty() ? 0 : POLLIN;
    if ((out | in) != 0) entries.push_back({link.socket.get(), static_cast<short>(out | in), 0});
  }
  const absl::Duration bounded = std::min(limit, absl::Seconds(60));
  poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(bounded)) + 1);
}

absl::Status RailSockets::ConnectionEnded(const Link& link, absl::string_view why) const {
  // Pairs with the store in Abort, which comes before the shutdown that ended the connection. So an
  // aborted rank never blames the peer.
  if (is_aborted_.load()) return NetworkError("the connections were closed");
  return NetworkError(absl::StrCat("the connection to ", link.name, " has ended: ", why));
}

void RailSockets::Abort() {
  is_aborted_.store(true);
  // Only shut down, not closed: the thread in Await may be using the descriptors.
  for (const Link& link : links_) {
    if (link.socket.valid()) shutdown(link.socket.get(), SHUT_RDWR);
  }
}

}  // namespace syncline::hierarchical
