// Authenticates the ranks that connect to a listening socket. The first message on a connection
// holds a secret, which only the ranks of the job can read in their store, and the sender's rank.
#ifndef SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
#define SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"

namespace syncline::backends {

inline constexpr size_t kHelloSecretSize = 32;  // Characters.

// A new random secret of hexadecimal digits.
std::string NewHelloSecret();

// Sends the first message: the secret, then the rank as a 32-bit integer in the byte order of the
// machine. Requires secret.size() == kHelloSecretSize. A NetworkError if the connection ends, a
// TimeoutError at the deadline.
absl::Status SendHello(int socket, absl::string_view secret, int rank, const Deadline& deadline);

// Accepts connections and returns those whose first message has the right secret. The acceptor
// reads from all others side by side, so a stranger that connects and sends nothing delays nobody.
// It is disconnected when too many strangers wait, or when the acceptor is destroyed.
//
// Not thread-safe. Owns the connections that it has not returned, not the listener.
class RankAcceptor {
 public:
  struct Connection {
    base::UniqueFd socket;
    int rank = 0;  // What the peer sent; not checked.
  };

  // `listener` must listen, be non-blocking, and outlive the acceptor. At least `expected`
  // connections may wait before their first message has come.
  RankAcceptor(int listener, std::string secret, int expected);

  // Waits for the next connection with the right secret. A TimeoutError at the deadline: it can
  // then be called again, with all accepted connections kept. Another error if the process lacks
  // descriptors.
  absl::StatusOr<Connection> Accept(const Deadline& deadline);

 private:
  struct Hello {
    char secret[kHelloSecretSize];
    int32_t rank;
  };
  struct Pending {
    base::UniqueFd socket;
    Hello hello;
    size_t received = 0;  // Bytes of `hello`.
  };
  enum class HelloState { kIncomplete, kComplete, kRefused };

  friend absl::Status SendHello(int, absl::string_view, int, const Deadline&);

  // Reads what has come of the first message, without a wait.
  HelloState Read(Pending& pending) const;
  absl::Status AcceptOne();

  const int listener_;
  const std::string secret_;
  const size_t most_pending_;
  std::deque<Pending> pending_;  // The oldest first.
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
