// The two sides of each connection to a listening socket, which prove to each other that they are
// of the job: rank_handshake.h over sockets.
#ifndef SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
#define SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/common/rank_handshake.h"
#include "core/base/unique_fd.h"
#include "core/tls/context.h"
#include "core/tls/session.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::backends {

// The caller's side. Not thread-safe. Owns the connection.
class Introduction {
 public:
  // Sends the first message over `socket`, which is connected. Requires secret.size() ==
  // kHelloSecretSize. `session` is null if the connection is not to be encrypted. A NetworkError if
  // the connection ends, a TimeoutError at the deadline.
  static absl::StatusOr<Introduction> Begin(base::UniqueFd socket, absl::string_view secret,
                                            int rank, const Deadline& deadline,
                                            std::unique_ptr<tls::Session> session = nullptr);

  // Waits for the listener's proof, gives this side's, and encrypts the connection. A NetworkError
  // if the listener does not know the secret, the connection ends, or tls::Session::Handshake
  // fails; a TimeoutError at the deadline: it can then be called again.
  absl::Status Finish(const Deadline& deadline);

  // Whether Finish has failed because the connection ended, without a refusal: a listener drops
  // some if many strangers connect, and may well take the next.
  bool was_dropped() const { return has_ended_; }

  int socket() const { return socket_.get(); }
  tls::Stream TakeStream() { return tls::Stream(std::move(socket_), std::move(session_)); }

 private:
  Introduction(base::UniqueFd socket, absl::string_view secret, int rank,
               std::unique_ptr<tls::Session> session);

  base::UniqueFd socket_;
  std::unique_ptr<tls::Session> session_;
  CallerHandshake handshake_;
  ChallengeMessage challenge_ = {};
  size_t received_ = 0;  // Bytes of `challenge_`.
  bool has_proved_ = false;
  bool has_ended_ = false;
};

// Accepts connections and returns those whose callers have proved that they know the secret. The
// acceptor serves all others side by side, so a stranger that connects and sends nothing delays
// nobody. It is disconnected when too many strangers wait, or when the acceptor is destroyed. Who
// has sent a HelloMessage with the right tag is no stranger; of those, too, only so many may wait.
// The first stranger that has sent something is logged once it goes or is refused, and so is the
// first caller that the owner refuses though it has proved that it knows the secret.
//
// Not thread-safe. Owns the connections that it has not returned, not the listeners.
class RankAcceptor {
 public:
  struct Connection {
    tls::Stream stream;
    int rank = 0;  // What the peer sent; not checked.
    // Why the connection cannot be encrypted. The caller knows the secret, so it is a rank whose
    // settings are wrong.
    absl::Status error = absl::OkStatus();
  };

  // `listeners` must listen, be non-blocking, and outlive the acceptor. Connections are encrypted
  // if `tls` is not null. At least `expected` connections may wait before their callers have proved
  // themselves.
  RankAcceptor(std::vector<int> listeners, std::string secret, int expected,
               std::shared_ptr<tls::Context> tls = nullptr);

  // Waits for the next caller that knows the secret. A TimeoutError at the deadline: it can
  // then be called again, with all accepted connections kept. Another error if the process lacks
  // descriptors.
  absl::StatusOr<Connection> Accept(const Deadline& deadline);

  // Logs that `connection`, which Accept has returned, is refused: it says that it is `claim`, as
  // in "rank 7", and `why` that cannot be. The caller closes it. Later ones are not logged.
  void LogImpossibleClaim(const Connection& connection, absl::string_view claim,
                          absl::string_view why);

 private:
  struct Pending {
    base::UniqueFd socket;
    ListenerHandshake handshake;
    std::unique_ptr<tls::Session> session;  // Once the proof has come.
    absl::Status error = absl::OkStatus();
    bool is_ready = true;  // Something may have come.
  };
  enum class State { kIncomplete, kComplete, kRefused };

  // Reads what has come, and answers it, without a wait.
  State Serve(Pending& pending);
  State Encrypt(Pending& pending) const;
  void LogRefusal(int socket);
  absl::Status AcceptOne(int listener);
  // Serves all of `connections`, and returns the first that is complete. Those that have greeted
  // meanwhile go to `greeted_`.
  std::optional<Connection> ServeAll(std::deque<Pending>& connections);

  const std::vector<int> listeners_;
  const std::string secret_;
  const std::shared_ptr<tls::Context> tls_;
  const size_t expected_;
  std::deque<Pending> strangers_, greeted_;  // The oldest first.
  bool has_logged_ = false;
  bool has_logged_claim_ = false;
};

// The member and its connection, from 0 on, that a caller means by `number`, where each member
// makes so many. A negative number stands for a member that there is not.
struct MemberConnection {
  int member, connection;
};
MemberConnection SplitNumber(int number, int connections);

// Why member `own` of `size`, which accepts those after it, cannot accept a caller that says that
// it is member `claimed`. Empty if it can.
absl::string_view WhyImpossible(int claimed, int own, int size);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
