#include "tests/support/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SetNoDelay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

constexpr int kPollMilliseconds = 20;  // How soon a new listener and the end are noticed.

}  // namespace

struct Proxy::Connection {
  base::UniqueFd sockets[2];  // Of the caller, and of whom it has called.
  std::string pending[2];     // Read from each, and not passed on yet.
  bool has_ended[2] = {false, false};
  int64_t carried = 0;
  int generation = 0;  // Of the fault that it has looked at.
  bool has_fault = false;
  bool is_stalled[2] = {false, false};  // What comes from each.
  bool is_lost[2] = {false, false};     // The same.
};

Proxy::Proxy(int piece, int delay) : piece_(piece), delay_(delay), thread_([this] { Run(); }) {}

Proxy::~Proxy() {
  is_over_ = true;
  thread_.join();
}

int Proxy::PortFor(int port) {
  base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  const bool listens =
      bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      listen(listener.get(), 64) == 0 &&
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!listens) std::abort();
  absl::MutexLock lock(&mutex_);
  listeners_.emplace_back(std::move(listener), port);
  return ntohs(address.sin_port);
}

void Proxy::Make(const Fault& fault) {
  absl::MutexLock lock(&mutex_);
  fault_ = fault;
  is_armed_ = true;
  ++generation_;
}

void Proxy::Accept(int listener, int port) {
  auto connection = std::make_unique<Connection>();
  connection->sockets[0] =
      base::UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection->sockets[0].valid()) return;
  const sockaddr_in address = Loopback(port);
  connection->sockets[1] =
      base::UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  connect(connection->sockets[1].get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof(address));
  for (const base::UniqueFd& socket : connection->sockets) SetNoDelay(socket.get());
  connections_.push_back(std::move(connection));
}

void Proxy::Run() {
  while (!is_over_) {
    std::vector<pollfd> entries;
    std::vector<std::pair<int, int>> listeners;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [socket, port] : listeners_) listeners.emplace_back(socket.get(), port);
    }
    for (const auto& [socket, port] : listeners) entries.push_back({socket, POLLIN, 0});
    for (const auto& connection : connections_) {
      for (const int from : {0, 1}) {
        // It is read once what was read before has gone.
        const bool reads = !connection->has_ended[from] && connection->pending[from].empty() &&
                           !connection->is_stalled[from];
        const bool writes =
            !connection->pending[1 - from].empty() && !connection->is_stalled[1 - from];
        const int events = (reads ? POLLIN : 0) | (writes ? POLLOUT : 0);
        // A negative descriptor, as of one that is closed, is passed over; one that has ended would
        // be ready for ever.
        entries.push_back(
            {events == 0 ? -1 : connection->sockets[from].get(), static_cast<short>(events), 0});
      }
    }
    poll(entries.data(), entries.size(), kPollMilliseconds);
    size_t entry = listeners.size();
    for (size_t i = 0; i < connections_.size();) {
      const bool is_ready = entries[entry].revents != 0 || entries[entry + 1].revents != 0;
      entry += 2;
      const bool is_useful =
          !is_ready || (Carry(*connections_[i], 0) && Carry(*connections_[i], 1));
      if (is_useful) {
        ++i;
      } else {
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (entries[i].revents != 0) Accept(listeners[i].first, listeners[i].second);
    }
  }
}

bool Proxy::Carry(Connection& connection, int from) {
  if (connection.is_stalled[from]) return true;
  std::string& pending = connection.pending[from];
  if (pending.empty() && !connection.has_ended[from]) {
    pending.resize(piece_);
    const ssize_t count =
        recv(connection.sockets[from].get(), pending.data(), pending.size(), MSG_DONTWAIT);
    const bool is_early = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    pending.resize(std::max<ssize_t>(count, 0));
    if (!is_early && count < 0) return false;
    if (count == 0) {
      connection.has_ended[from] = true;
      shutdown(connection.sockets[1 - from].get(), SHUT_WR);
      return !connection.has_ended[1 - from];
    }
  }
  if (pending.empty()) return true;
  {
    absl::MutexLock lock(&mutex_);
    if (is_armed_ && connection.generation != generation_) {
      connection.generation = generation_;
      connection.has_fault = fault_.skip-- == 0;
      connection.carried = 0;
    }
    if (is_armed_ && connection.has_fault && !has_happened_) {
      connection.carried += static_cast<int64_t>(pending.size());
      if (connection.carried > fault_.bytes) {
        has_happened_ = true;
        switch (fault_.kind) {
          case Fault::Kind::kStall:
            connection.is_stalled[0] = connection.is_stalled[1] = true;
            return true;
          case Fault::Kind::kStallOneWay:
            connection.is_stalled[from] = true;
            break;
          case Fault::Kind::kLoseOneWay:
            connection.is_lost[from] = true;
            break;
          case Fault::Kind::kHalfOpen:
            connection.is_stalled[from] = connection.is_lost[1 - from] = true;
            connection.has_ended[from] = true;
            connection.sockets[from].reset();
            connection.pending[1 - from].clear();
            break;
          case Fault::Kind::kEnd:
            return false;
          case Fault::Kind::kReset: {
            const linger at_once = {1, 0};
            for (const base::UniqueFd& socket : connection.sockets) {
              setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
            }
            return false;
          }
          case Fault::Kind::kChange:
            pending[pending.size() / 2] ^= 1;
            break;
        }
      }
    }
  }
  if (connection.is_lost[from]) pending.clear();
  if (connection.is_stalled[from] || pending.empty()) return true;
  if (delay_ > 0) absl::SleepFor(absl::Microseconds(delay_));
  const ssize_t count = send(connection.sockets[1 - from].get(), pending.data(), pending.size(),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOTCONN) {
    return false;
  }
  pending.erase(0, std::max<ssize_t>(count, 0));
  return true;
}

absl::Status ProxiedStore::Set(absl::string_view key, absl::string_view value) {
  constexpr absl::string_view kAddress = "127.0.0.1 ";
  std::string changed;
  while (true) {
    const size_t at = value.find(kAddress);
    const size_t end = at == value.npos ? at : value.find(' ', at + kAddress.size());
    int port = 0;
    if (end == value.npos ||
        !absl::SimpleAtoi(value.substr(at + kAddress.size(), end - at - kAddress.size()), &port)) {
      break;
    }
    absl::StrAppend(&changed, value.substr(0, at), kAddress, proxy_.PortFor(port));
    value.remove_prefix(end);
  }
  return store().Set(key, absl::StrCat(changed, value));
}

}  // namespace syncline
