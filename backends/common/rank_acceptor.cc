#include "backends/common/rank_acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/host.h"
#include "core/base/listening.h"
#include "core/base/sockets.h"
#include "syncline/check.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// How many connections of strangers may wait beside those of the ranks, and how many that sent the
// right tag.
constexpr size_t kMaxStrangers = 64;

// Reads what has come into `room`, without a wait. Returns how many bytes; nothing if the
// connection has ended.
std::optional<size_t> ReadSome(int socket, absl::Span<char> room) {
  const ssize_t count = recv(socket, room.data(), room.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  const bool is_early = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (is_early) return 0;
  return std::nullopt;
}

// Who is at the other side: its address, if it has one.
std::string DescribeCaller(int socket) {
  base::SocketAddress caller;
  if (getpeername(socket, caller.get(), &caller.length) != 0) return "a caller that has left";
  if (caller.family() == AF_UNIX) return "a process of this host";
  return absl::StrCat(base::NumericHost(caller), " (port ", base::PortOf(caller), ")");
}

}  // namespace

absl::StatusOr<Introduction> Introduction::Begin(base::UniqueFd socket, absl::string_view secret,
                                                 int rank, const Deadline& deadline,
                                                 std::unique_ptr<tls::Session> session) {
  SYNCLINE_DCHECK(secret.size() == kHelloSecretSize);
  Introduction introduction(std::move(socket), secret, rank, std::move(session));
  const HelloMessage& hello = introduction.handshake_.hello();
  SYNCLINE_RETURN_IF_ERROR(base::SendAll(introduction.socket(), &hello, sizeof(hello), deadline));
  return introduction;
}

Introduction::Introduction(base::UniqueFd socket, absl::string_view secret, int rank,
                           std::unique_ptr<tls::Session> session)
    : socket_(std::move(socket)), session_(std::move(session)), handshake_(secret, rank) {}

absl::Status Introduction::Finish(const Deadline& deadline) {
  while (received_ < sizeof(challenge_)) {
    SYNCLINE_RETURN_IF_ERROR(base::WaitReadable(socket_.get(), deadline));
    const std::optional<size_t> count =
        ReadSome(socket_.get(), absl::MakeSpan(reinterpret_cast<char*>(&challenge_) + received_,
                                               sizeof(challenge_) - received_));
    if (!count.has_value()) {
      has_ended_ = true;
      return NetworkError("the other side has ended the connection before it said who it is");
    }
    received_ += *count;
  }
  if (!has_proved_) {
    SYNCLINE_ASSIGN_OR_RETURN(const ProofMessage proof, handshake_.Answer(challenge_));
    SYNCLINE_RETURN_IF_ERROR(base::SendAll(socket_.get(), &proof, sizeof(proof), deadline));
    has_proved_ = true;
  }
  while (session_ != nullptr) {
    const absl::StatusOr<bool> is_complete = session_->Handshake(socket_.get());
    has_ended_ = session_->has_ended();
    SYNCLINE_RETURN_IF_ERROR(is_complete.status());
    if (*is_complete) break;
    SYNCLINE_RETURN_IF_ERROR(base::WaitReadable(socket_.get(), deadline));
  }
  return absl::OkStatus();
}

RankAcceptor::RankAcceptor(std::vector<int> listeners, std::string secret, int expected,
                           std::shared_ptr<tls::Context> tls)
    : listeners_(std::move(listeners)),
      secret_(std::move(secret)),
      tls_(std::move(tls)),
      expected_(static_cast<size_t>(expected)) {}

absl::StatusOr<RankAcceptor::Connection> RankAcceptor::Accept(const Deadline& deadline) {
  // Each round looks at the deadline, because strangers may connect without end.
  while (!deadline.Expired()) {
    std::vector<pollfd> entries;
    for (const int listener : listeners_) entries.push_back({listener, POLLIN, 0});
    for (const std::deque<Pending>* connections : {&strangers_, &greeted_}) {
      for (const Pending& it : *connections) entries.push_back({it.socket.get(), POLLIN, 0});
    }
    SYNCLINE_RETURN_IF_ERROR(base::Poll(absl::MakeSpan(entries), deadline));
    size_t entry = listeners_.size();
    for (std::deque<Pending>* connections : {&strangers_, &greeted_}) {
      for (Pending& it : *connections) it.is_ready = entries[entry++].revents != 0;
    }
    // A new connection's first message has mostly come with it, so the same round reads it.
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (entries[i].revents != 0) SYNCLINE_RETURN_IF_ERROR(AcceptOne(listeners_[i]));
    }
    // All have been read before one is dropped for the next.
    for (std::deque<Pending>* connections : {&strangers_, &greeted_}) {
      std::optional<Connection> complete = ServeAll(*connections);
      if (complete.has_value()) return *std::move(complete);
    }
    for (std::deque<Pending>* connections : {&strangers_, &greeted_}) {
      while (connections->size() > kMaxStrangers + expected_) connections->pop_front();
    }
  }
  return TimeoutError(
      absl::StrCat("nobody connected within ", absl::FormatDuration(deadline.timeout())));
}

absl::Status RankAcceptor::AcceptOne(int listener) {
  absl::StatusOr<base::UniqueFd> socket = base::TryAccept(listener);
  if (!socket.ok()) {
    // They may all be of ranks.
    if (strangers_.size() + greeted_.size() <= expected_ || strangers_.empty()) {
      return socket.status();
    }
    strangers_.pop_front();  // The next connection gets its descriptor.
    return absl::OkStatus();
  }
  if (!socket->valid()) return absl::OkStatus();
  strangers_.emplace_back().socket = *std::move(socket);
  return absl::OkStatus();
}

std::optional<RankAcceptor::Connection> RankAcceptor::ServeAll(std::deque<Pending>& connections) {
  for (auto pending = connections.begin(); pending != connections.end();) {
    if (!pending->is_ready) {
      ++pending;
      continue;
    }
    const bool had_greeted = pending->handshake.has_greeted();
    const State state = Serve(*pending);
    if (state == State::kIncomplete && pending->handshake.has_greeted() == had_greeted) {
      ++pending;
      continue;
    }
    Pending served = std::move(*pending);
    pending = connections.erase(pending);
    if (state == State::kIncomplete) greeted_.push_back(std::move(served));
    if (state != State::kComplete) continue;
    return Connection{tls::Stream(std::move(served.socket), std::move(served.session)),
                      served.handshake.rank(), std::move(served.error)};
  }
  return std::nullopt;
}

RankAcceptor::State RankAcceptor::Serve(Pending& pending) {
  if (pending.session != nullptr) return Encrypt(pending);
  const int socket = pending.socket.get();
  ListenerHandshake& handshake = pending.handshake;
  while (true) {
    const std::optional<size_t> count = ReadSome(socket, handshake.room());
    if (!count.has_value()) {
      // It may have left since this side does not know the secret that it does.
      if (handshake.has_begun() && !handshake.has_greeted()) LogRefusal(socket);
      return State::kRefused;
    }
    const ListenerHandshake::Step step = handshake.Receive(*count, secret_);
    if (step == ListenerHandshake::Step::kIncomplete) return State::kIncomplete;
    if (step == ListenerHandshake::Step::kRefused) {
      LogRefusal(socket);
      return State::kRefused;
    }
    if (step == ListenerHandshake::Step::kProved) break;
    const ChallengeMessage& challenge = handshake.challenge();
    // The connection is new, so it has room for this.
    if (send(socket, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(sizeof(challenge))) {
      return State::kRefused;
    }
  }
  if (tls_ == nullptr) return State::kComplete;
  auto session = tls_->Accept(TlsPurpose(secret_, handshake.rank()));
  if (!session.ok()) {
    pending.error = session.status();
    return State::kComplete;
  }
  pending.session = *std::move(session);
  return Encrypt(pending);
}

// Once: a stranger could fill the log.
void RankAcceptor::LogRefusal(int socket) {
  if (has_logged_) return;
  has_logged_ = true;
  LogInBackground(LogLevel::kWarning,
                  absl::StrCat("a rank's port has refused ", DescribeCaller(socket),
                               ", which has not proved that it is a rank of this group; further ",
                               "ones are not logged"));
}

// Once, as above: whoever knows the secret could fill the log too.
void RankAcceptor::LogImpossibleClaim(const Connection& connection, absl::string_view claim,
                                      absl::string_view why) {
  if (has_logged_claim_) return;
  has_logged_claim_ = true;
  LogInBackground(LogLevel::kWarning,
                  absl::StrCat("a rank's port has refused ", DescribeCaller(connection.stream.fd()),
                               ", which knows the secret of this group, but says that it is ",
                               claim, ": ", why, "; further ones are not logged"));
}

RankAcceptor::State RankAcceptor::Encrypt(Pending& pending) const {
  const absl::StatusOr<bool> is_encrypted = pending.session->Handshake(pending.socket.get());
  pending.error = is_encrypted.status();
  return is_encrypted.ok() && !*is_encrypted ? State::kIncomplete : State::kComplete;
}

MemberConnection SplitNumber(int number, int connections) {
  const int rest = number % connections, connection = rest < 0 ? rest + connections : rest;
  return {rest < 0 ? number / connections - 1 : number / connections, connection};
}

absl::string_view WhyImpossible(int claimed, int own, int size) {
  if (claimed < 0 || claimed >= size) return "there is no such rank";
  if (claimed == own) return "this rank is that one";
  if (claimed < own) return "this rank connects to that one itself";
  return "";
}

}  // namespace syncline::backends
