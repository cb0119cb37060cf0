#include "backends/common/rank_acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
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

// How many connections of strangers may wait beside those of the ranks, and how many that sent the
// right tag.
constexpr size_t kMaxStrangers = 64;

constexpr uint32_t kMagic = 0x53594832;  // "SYH2".

// Who proves: otherwise a listener could be had to prove what a caller must.
constexpr char kListener[] = "listener", kCaller[] = "caller";

template <size_t kSize>
void CopyTo(char (&to)[kSize], absl::string_view from) {
  SYNCLINE_DCHECK(from.size() == kSize);
  std::memcpy(to, from.data(), kSize);
}

template <size_t kSize>
absl::string_view Bytes(const char (&bytes)[kSize]) {
  return absl::string_view(bytes, kSize);
}

std::string ProofOf(absl::string_view who, absl::string_view secret, const HelloMessage& hello,
                    const char (&listener_nonce)[16]) {
  return base::HmacSha256(
      secret, absl::StrCat(who, " ", Bytes(hello.nonce), Bytes(listener_nonce), hello.rank));
}

std::string TagOf(absl::string_view secret, const HelloMessage& hello) {
  return base::HmacSha256(secret, absl::StrCat("hello ", Bytes(hello.nonce), hello.rank));
}

// SameBytes takes equally long whatever differs, so a stranger learns nothing from the time.
bool Proves(const char (&proof)[32], absl::string_view who, absl::string_view secret,
            const HelloMessage& hello, const char (&listener_nonce)[16]) {
  return base::SameBytes(Bytes(proof), ProofOf(who, secret, hello, listener_nonce));
}

// Reads what has come of a message of `size` bytes, of which `received` are there, without a wait.
// Returns how many bytes; nothing if the connection has ended.
std::optional<size_t> ReadSome(int socket, void* message, size_t size, size_t received) {
  const ssize_t count =
      recv(socket, static_cast<char*>(message) + received, size - received, MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  const bool is_early = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (is_early) return 0;
  return std::nullopt;
}

}  // namespace

std::string NewHelloSecret() {
  return absl::BytesToHexString(base::RandomBytes(kHelloSecretSize / 2));
}

absl::StatusOr<Introduction> Introduction::Begin(base::UniqueFd socket, absl::string_view secret,
                                                 int rank, const Deadline& deadline,
                                                 std::unique_ptr<tls::Session> session) {
  SYNCLINE_DCHECK(secret.size() == kHelloSecretSize);
  Introduction introduction(std::move(socket), secret, rank, std::move(session));
  SYNCLINE_RETURN_IF_ERROR(base::SendAll(introduction.socket(), &introduction.hello_,
                                         sizeof(introduction.hello_), deadline));
  return introduction;
}

Introduction::Introduction(base::UniqueFd socket, absl::string_view secret, int rank,
                           std::unique_ptr<tls::Session> session)
    : socket_(std::move(socket)),
      session_(std::move(session)),
      secret_(secret),
      hello_{kMagic, rank, {}, {}},
      challenge_{} {
  CopyTo(hello_.nonce, base::RandomBytes(sizeof(hello_.nonce)));
  CopyTo(hello_.tag, TagOf(secret_, hello_));
}

absl::Status Introduction::Finish(const Deadline& deadline) {
  while (received_ < sizeof(challenge_)) {
    SYNCLINE_RETURN_IF_ERROR(base::WaitReadable(socket_.get(), deadline));
    const std::optional<size_t> count =
        ReadSome(socket_.get(), &challenge_, sizeof(challenge_), received_);
    if (!count.has_value()) {
      has_ended_ = true;
      return NetworkError("the other side has ended the connection before it said who it is");
    }
    received_ += *count;
  }
  if (!Proves(challenge_.proof, kListener, secret_, hello_, challenge_.nonce)) {
    return NetworkError("the other side does not know the secret of the job");
  }
  if (!has_proved_) {
    ProofMessage proof;
    CopyTo(proof.proof, ProofOf(kCaller, secret_, hello_, challenge_.nonce));
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
    const bool had_greeted = pending->has_greeted;
    const State state = Serve(*pending);
    if (state == State::kIncomplete && pending->has_greeted == had_greeted) {
      ++pending;
      continue;
    }
    Pending served = std::move(*pending);
    pending = connections.erase(pending);
    if (state == State::kIncomplete) greeted_.push_back(std::move(served));
    if (state != State::kComplete) continue;
    return Connection{tls::Stream(std::move(served.socket), std::move(served.session)),
                      served.hello.rank, std::move(served.error)};
  }
  return std::nullopt;
}

RankAcceptor::State RankAcceptor::Serve(Pending& pending) const {
  if (pending.session != nullptr) return Encrypt(pending);
  const int socket = pending.socket.get();
  constexpr size_t kHello = sizeof(pending.hello);
  if (pending.received < kHello) {
    const auto count = ReadSome(socket, &pending.hello, kHello, pending.received);
    if (!count.has_value()) return State::kRefused;
    pending.received += *count;
    if (pending.received < kHello) return State::kIncomplete;
    if (pending.hello.magic != kMagic) return State::kRefused;
    pending.has_greeted = base::SameBytes(Bytes(pending.hello.tag), TagOf(secret_, pending.hello));
    CopyTo(pending.challenge.nonce, base::RandomBytes(sizeof(pending.challenge.nonce)));
    CopyTo(pending.challenge.proof,
           ProofOf(kListener, secret_, pending.hello, pending.challenge.nonce));
    // The connection is new, so it has room for this.
    if (send(socket, &pending.challenge, sizeof(pending.challenge), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(sizeof(pending.challenge))) {
      return State::kRefused;
    }
  }
  const auto count =
      ReadSome(socket, &pending.proof, sizeof(pending.proof), pending.received - kHello);
  if (!count.has_value()) return State::kRefused;
  pending.received += *count;
  if (pending.received < kHello + sizeof(pending.proof)) return State::kIncomplete;
  const bool is_proved =
      Proves(pending.proof.proof, kCaller, secret_, pending.hello, pending.challenge.nonce);
  if (!is_proved) return State::kRefused;
  if (tls_ == nullptr) return State::kComplete;
  auto session = tls_->Accept(secret_);
  if (!session.ok()) {
    pending.error = session.status();
    return State::kComplete;
  }
  pending.session = *std::move(session);
  return Encrypt(pending);
}

RankAcceptor::State RankAcceptor::Encrypt(Pending& pending) const {
  const absl::StatusOr<bool> is_encrypted = pending.session->Handshake(pending.socket.get());
  pending.error = is_encrypted.status();
  return is_encrypted.ok() && !*is_encrypted ? State::kIncomplete : State::kComplete;
}

}  // namespace syncline::backends
