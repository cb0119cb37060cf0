#include "backends/common/rank_acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/hmac.h"
#include "core/base/sockets.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// How many connections of strangers may wait beside those of the ranks.
constexpr size_t kMaxStrangers = 64;

}  // namespace

std::string NewHelloSecret() {
  return absl::BytesToHexString(base::RandomBytes(kHelloSecretSize / 2));
}

absl::Status SendHello(int socket, absl::string_view secret, int rank, const Deadline& deadline) {
  SYNCLINE_DCHECK(secret.size() == kHelloSecretSize);
  RankAcceptor::Hello hello;
  std::memcpy(hello.secret, secret.data(), kHelloSecretSize);
  hello.rank = rank;
  return base::SendAll(socket, &hello, sizeof(hello), deadline);
}

RankAcceptor::RankAcceptor(int listener, std::string secret, int expected)
    : listener_(listener),
      secret_(std::move(secret)),
      most_pending_(static_cast<size_t>(expected) + kMaxStrangers) {}

absl::StatusOr<RankAcceptor::Connection> RankAcceptor::Accept(const Deadline& deadline) {
  // Each round looks at the deadline, because strangers may connect without end.
  while (!deadline.Expired()) {
    std::vector<pollfd> entries = {{listener_, POLLIN, 0}};
    for (const Pending& pending : pending_) entries.push_back({pending.socket.get(), POLLIN, 0});
    SYNCLINE_RETURN_IF_ERROR(base::Poll(absl::MakeSpan(entries), deadline));
    // A new connection's first message has mostly come with it, so the same round reads it.
    if (entries[0].revents != 0) SYNCLINE_RETURN_IF_ERROR(AcceptOne());
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      const HelloState state = Read(*pending);
      if (state == HelloState::kIncomplete) {
        ++pending;
        continue;
      }
      Connection connection{std::move(pending->socket), pending->hello.rank};
      pending = pending_.erase(pending);
      if (state == HelloState::kComplete) return connection;
    }
  }
  return TimeoutError(
      absl::StrCat("nobody connected within ", absl::FormatDuration(deadline.timeout())));
}

absl::Status RankAcceptor::AcceptOne() {
  absl::StatusOr<base::UniqueFd> socket = base::TryAccept(listener_);
  if (!socket.ok()) {
    if (pending_.empty()) return socket.status();
    pending_.pop_front();  // The next connection gets its descriptor.
    return absl::OkStatus();
  }
  if (!socket->valid()) return absl::OkStatus();
  if (pending_.size() == most_pending_) pending_.pop_front();
  pending_.push_back({*std::move(socket), {}, 0});
  return absl::OkStatus();
}

RankAcceptor::HelloState RankAcceptor::Read(Pending& pending) const {
  char* const bytes = reinterpret_cast<char*>(&pending.hello);
  const ssize_t count = recv(pending.socket.get(), bytes + pending.received,
                             sizeof(pending.hello) - pending.received, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return HelloState::kIncomplete;
  }
  if (count <= 0) return HelloState::kRefused;
  pending.received += static_cast<size_t>(count);
  if (pending.received < sizeof(pending.hello)) return HelloState::kIncomplete;
  // SameBytes takes equally long whatever differs, so a stranger learns nothing from the time.
  const absl::string_view secret(pending.hello.secret, kHelloSecretSize);
  return base::SameBytes(secret, secret_) ? HelloState::kComplete : HelloState::kRefused;
}

}  // namespace syncline::backends
