#include "store/tcp/tls_relay.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/thread.h"
#include "syncline/deadline.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr int kMaxEvents = 64;
constexpr uint64_t kWake = 0;
// So many times a connection moves before others have their turn.
constexpr int kMovesInARow = 16;
constexpr absl::Duration kGrace = absl::Seconds(1);

absl::Status SystemError(absl::string_view what) {
  return NetworkError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

bool IsEarly() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// These calls do not wait, so signals do not end them; but nothing would wake this thread again.
template <typename Call>
ssize_t Repeat(Call call) {
  ssize_t result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Reported once for each change, since each end is moved as far as it goes.
bool Watch(const base::UniqueFd& epoll, int fd, uint64_t number) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = number;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TLSRelay>> TLSRelay::Start() {
  std::unique_ptr<TLSRelay> relay(new TLSRelay);
  SYNCLINE_RETURN_IF_ERROR(relay->Open());
  return relay;
}

absl::Status TLSRelay::Open() {
  epoll_ = base::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return SystemError("watch encrypted connections");
  }
  SYNCLINE_ASSIGN_OR_RETURN(thread_, base::StartThread("encryption", [this] { Run(); }));
  return absl::OkStatus();
}

TLSRelay::~TLSRelay() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, connection] : connections_) End(*connection);
}

// Not by closing alone: a fork()ed child may have the descriptors too.
void TLSRelay::End(const Connection& connection) {
  shutdown(connection.network.fd(), SHUT_RDWR);
  shutdown(connection.local.get(), SHUT_RDWR);
}

absl::StatusOr<base::UniqueFd> TLSRelay::Add(tls::Stream stream) {
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return SystemError("make the plain end of an encrypted connection");
  }
  base::UniqueFd plain(pair[0]);
  auto connection = std::make_unique<Connection>();
  connection->network = std::move(stream);
  connection->local = base::UniqueFd(pair[1]);
  connection->in.buffer.resize(kBufferBytes);
  connection->out.buffer.resize(kBufferBytes);
  absl::MutexLock lock(&mutex_);
  const uint64_t number = ++last_number_;
  const int fds[] = {connection->network.fd(), connection->local.get()};
  connections_[number] = std::move(connection);
  // What the network's end has read along with the handshake makes no event, but that it can be
  // written to does.
  for (const int fd : fds) {
    if (Watch(epoll_, fd, number)) continue;
    const absl::Status error = SystemError("watch an encrypted connection");
    connections_.erase(number);  // Run has not seen it: it looks under the lock.
    return error;
  }
  return plain;
}

void TLSRelay::Run() {
  std::set<uint64_t> have_more;
  std::set<uint64_t> closing;  // Looked at each second, as nothing may happen to them any more.
  std::optional<Deadline> end;
  epoll_event events[kMaxEvents];
  while (true) {
    int timeout = have_more.empty() ? -1 : 0;
    if (end.has_value() && timeout < 0) {
      timeout = static_cast<int>(absl::ToInt64Milliseconds(end->Remaining())) + 1;
    }
    if (timeout < 0 && !closing.empty()) timeout = 1000;
    const int count = epoll_wait(epoll_.get(), events, kMaxEvents, timeout);
    std::set<uint64_t> active = std::exchange(have_more, {});
    active.insert(closing.begin(), closing.end());
    for (int i = 0; i < count; ++i) active.insert(events[i].data.u64);
    if (active.erase(kWake) > 0) {
      eventfd_t value;
      eventfd_read(wake_.get(), &value);
    }
    for (const uint64_t number : active) {
      Connection* connection = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        const auto found = connections_.find(number);
        if (found != connections_.end()) connection = found->second.get();
      }
      if (connection == nullptr) continue;
      const Pace pace = Move(*connection);
      if (pace == Pace::kHasMore) have_more.insert(number);
      if (connection->end.has_value()) closing.insert(number);
      if (pace != Pace::kOver) continue;
      End(*connection);
      closing.erase(number);
      absl::MutexLock lock(&mutex_);
      connections_.erase(number);
    }
    absl::MutexLock lock(&mutex_);
    if (!is_ending_) continue;
    if (!end.has_value()) end = Deadline(kGrace);
    if (connections_.empty() || end->Expired()) return;
  }
}

TLSRelay::Pace TLSRelay::Move(Connection& connection) {
  for (int i = 0; i < kMovesInARow; ++i) {
    const bool has_moved_in = MoveIn(connection), has_moved_out = MoveOut(connection);
    // gRPC has closed its end, or has all that the network's end has sent.
    const Direction &in = connection.in, &out = connection.out;
    if ((in.has_ended && in.is_empty()) || (out.has_ended && out.is_empty())) return Pace::kOver;
    if ((in.has_ended || out.has_ended) && !connection.end.has_value()) {
      connection.end = Deadline(kLinger);
    }
    if (connection.end.has_value() && connection.end->Expired()) return Pace::kOver;
    if (!has_moved_in && !has_moved_out) return Pace::kWaits;
  }
  return Pace::kHasMore;
}

bool TLSRelay::MoveIn(Connection& connection) {
  Direction& in = connection.in;
  bool has_moved = false;
  if (in.is_empty() && !in.has_ended) {
    const iovec room = {in.buffer.data(), in.buffer.size()};
    const ssize_t received = connection.network.Receive(&room, 1);
    if (received > 0) {
      in.begin = 0;
      in.end = static_cast<size_t>(received);
      has_moved = true;
    } else if (!IsEarly()) {
      if (errno == EPROTO) {
        LogInBackground(
            LogLevel::kWarning,
            "a connection of a tcp store has ended: what came cannot be decrypted, so it "
            "was changed on its way");
      }
      in.has_ended = true;
    }
  }
  if (!in.is_empty()) {
    const ssize_t sent = in.is_broken ? static_cast<ssize_t>(in.end - in.begin) : Repeat([&] {
      return send(connection.local.get(), in.buffer.data() + in.begin, in.end - in.begin,
                  MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    if (sent > 0) {
      in.begin += static_cast<size_t>(sent);
      has_moved = true;
    } else if (!IsEarly()) {
      in.is_broken = true;  // gRPC has closed its end; what it has sent is still passed on.
      has_moved = true;
    }
  }
  return has_moved;
}

bool TLSRelay::MoveOut(Connection& connection) {
  Direction& out = connection.out;
  bool has_moved = false;
  if (out.is_empty() && !out.has_ended) {
    const ssize_t received = Repeat([&] {
      return recv(connection.local.get(), out.buffer.data(), out.buffer.size(), MSG_DONTWAIT);
    });
    if (received > 0) {
      out.begin = 0;
      out.end = static_cast<size_t>(received);
      has_moved = true;
    } else if (received == 0 || !IsEarly()) {
      out.has_ended = true;
    }
  }
  if (!out.is_empty()) {
    const iovec rest = {out.buffer.data() + out.begin, out.end - out.begin};
    const ssize_t sent =
        out.is_broken ? static_cast<ssize_t>(rest.iov_len) : connection.network.Send(&rest, 1);
    if (sent > 0) {
      out.begin += static_cast<size_t>(sent);
      has_moved = true;
    } else if (!IsEarly()) {
      out.is_broken = true;  // What has come from there is still passed on.
      has_moved = true;
    }
  }
  return has_moved;
}

}  // namespace syncline::tcp_store
