#include "store/tcp/tcp_connect.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "store/tcp/handshake.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLastPause = absl::Milliseconds(50);
// For each address but the last: one that nobody answers at leaves time for the others.
constexpr absl::Duration kAddressTimeout = absl::Seconds(5);

constexpr absl::string_view kRefusalUrl = "syncline/tcp-store-refusal";

// How one attempt ended.
struct Attempt {
  tls::Stream connection;
  absl::Status refusal;    // Of a server that answered: final.
  absl::Status no_answer;  // Another attempt may do better.
};

// TLS, if it is asked for, over `connection`, whose other side has proved the secret.
Attempt Encrypt(base::UniqueFd connection, const ServerAddress& server, const Deadline& deadline) {
  Attempt attempt;
  std::unique_ptr<tls::Session> session;
  if (server.tls != nullptr) {
    auto begun = server.tls->Connect(kTlsPurpose, server.certified_host);
    attempt.refusal = begun.status();
    if (!begun.ok()) return attempt;
    session = *std::move(begun);
  }
  while (session != nullptr) {
    const absl::StatusOr<bool> is_complete = session->Handshake(connection.get());
    (session->has_ended() ? attempt.no_answer : attempt.refusal) = is_complete.status();
    if (!is_complete.ok()) return attempt;
    if (*is_complete) break;
    attempt.no_answer = base::WaitReadable(connection.get(), deadline);
    if (!attempt.no_answer.ok()) return attempt;
  }
  attempt.connection = tls::Stream(std::move(connection), std::move(session));
  return attempt;
}

// Both sides' proofs over `connection`.
Attempt Prove(base::UniqueFd connection, const ServerAddress& server, const Deadline& deadline) {
  const tls::Mode mode = server.tls == nullptr ? tls::Mode::kOff : server.tls->mode();
  const ClientHandshake handshake(server.secret, mode);
  const std::string hello = handshake.Hello();
  std::string challenge(kChallengeBytes, '\0');
  Attempt attempt;
  attempt.no_answer = base::SendAll(connection.get(), hello.data(), hello.size(), deadline);
  if (!attempt.no_answer.ok()) return attempt;
  // The magic first: what another service says may be short.
  const size_t first = kHandshakeMagic.size();
  attempt.no_answer = base::ReceiveAll(connection.get(), &challenge[0], first, deadline);
  if (!attempt.no_answer.ok()) return attempt;
  if (ServerHandshake::CanBeHello(challenge.substr(0, first))) {
    attempt.no_answer =
        base::ReceiveAll(connection.get(), &challenge[first], challenge.size() - first, deadline);
    if (!attempt.no_answer.ok()) return attempt;
  }
  const absl::StatusOr<std::string> response = handshake.Respond(challenge);
  attempt.refusal = response.status();
  if (!attempt.refusal.ok()) return attempt;
  attempt.no_answer = base::SendAll(connection.get(), response->data(), response->size(), deadline);
  if (!attempt.no_answer.ok()) return attempt;
  return Encrypt(std::move(connection), server, deadline);
}

Attempt TryOnce(const ServerAddress& server, const Deadline& deadline) {
  Attempt attempt;
  const auto addresses = base::Resolve(server.host, {server.port}, deadline);
  attempt.no_answer = addresses.status();
  if (!addresses.ok()) return attempt;
  for (const base::SocketAddress& address : *addresses) {
    const Deadline one(&address == &addresses->back()
                           ? deadline.Remaining()
                           : std::min(deadline.Remaining(), kAddressTimeout));
    absl::StatusOr<base::UniqueFd> connected = base::Connect(address, SOCK_STREAM, one);
    attempt.no_answer = connected.status();
    if (!connected.ok()) continue;
    attempt = Prove(*std::move(connected), server, one);
    if (attempt.connection.valid() || !attempt.refusal.ok()) break;
  }
  return attempt;
}

}  // namespace

absl::StatusOr<tls::Stream> ConnectToServer(const ServerAddress& server, const Deadline& deadline) {
  absl::Duration pause = kFirstPause;
  std::string cause = "it does not answer";
  while (true) {
    Attempt attempt = TryOnce(server, deadline);
    if (attempt.connection.valid()) {
      base::SetNoDelay(attempt.connection.fd());  // Requests are small and wait for their answers.
      return std::move(attempt.connection);
    }
    if (!attempt.refusal.ok()) {
      attempt.refusal.SetPayload(kRefusalUrl, absl::Cord());
      return attempt.refusal;
    }
    // That the last attempt had no time says less than why the one before it failed.
    if (KindOf(attempt.no_answer) != ErrorKind::kTimeout) {
      cause = std::string(attempt.no_answer.message());
    }
    if (deadline.Expired()) {
      return NetworkError(absl::StrCat(
          "no connection after ", absl::FormatDuration(deadline.timeout()), " (", cause,
          "); see whether the process that hosts the store is running, and whether its host and ",
          "port are right"));
    }
    SYNCLINE_RETURN_IF_ERROR(Interruption());
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(pause, deadline.Remaining())));
    pause = std::min(2 * pause, kLastPause);
  }
}

bool IsRefusal(const absl::Status& status) { return status.GetPayload(kRefusalUrl).has_value(); }

}  // namespace syncline::tcp_store
