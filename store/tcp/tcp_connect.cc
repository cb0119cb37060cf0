#include "store/tcp/tcp_connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

// How one attempt ended.
struct Attempt {
  base::UniqueFd connection;
  absl::Status refusal;    // Of a server that answered: final.
  absl::Status no_answer;  // Another attempt may do better.
};

// Both sides' proofs over `connection`.
Attempt Prove(base::UniqueFd connection, const std::string& secret, const Deadline& deadline) {
  const ClientHandshake handshake(secret);
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
  if (attempt.no_answer.ok()) attempt.connection = std::move(connection);
  return attempt;
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
    attempt = Prove(*std::move(connected), server.secret, one);
    if (attempt.connection.valid() || !attempt.refusal.ok()) break;
  }
  return attempt;
}

}  // namespace

absl::StatusOr<base::UniqueFd> ConnectToServer(const ServerAddress& server,
                                               const Deadline& deadline) {
  absl::Duration pause = kFirstPause;
  std::string cause = "it does not answer";
  while (true) {
    Attempt attempt = TryOnce(server, deadline);
    if (attempt.connection.valid()) {
      const int on = 1;  // Requests are small and wait for their answers.
      setsockopt(attempt.connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return std::move(attempt.connection);
    }
    if (!attempt.refusal.ok()) return attempt.refusal;
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

}  // namespace syncline::tcp_store
