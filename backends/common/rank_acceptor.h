// How ranks prove to one that listens who they are: the first message on a connection holds a
// secret, which only the ranks of the job can read in their store, and the sender's rank.
#ifndef SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
#define SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace syncline {

// A secret is so many characters long.
inline constexpr size_t kHelloSecretSize = 32;
std::string NewHelloSecret();

// Sends the first message. Requires secret.size() == kHelloSecretSize.
absl::Status SendHello(int socket, absl::string_view secret, int rank, const Deadline& deadline);

// Accepts connections and returns those that have said hello with the right secret. All others wait
// together: a stranger that connects and says nothing delays nobody, and is disconnected when there
// are too many of them or the acceptor is destroyed. Not thread-safe.
class RankAcceptor {
 public:
  struct Connection {
    UniqueFd socket;
    int rank = 0;  // As the peer says.
  };

  // Listens at `listener`, which must be non-blocking and outlive the acceptor. Keeps at least
  // `expected` connections that have not said hello yet.
  RankAcceptor(int listener, std::string secret, int expected);

  // Waits for the next connection that says hello. After a TimeoutError it can be called again, and
  // the connections that have been accepted go on.
  absl::StatusOr<Connection> Accept(const Deadline& deadline);

 private:
  struct Hello {
    char secret[kHelloSecretSize];
    int32_t rank;
  };
  struct Pending {
    UniqueFd socket;
    Hello hello;
    size_t received = 0;  // Bytes of `hello`.
  };
  enum class Greeting { kIncomplete, kComplete, kRefused };

  friend absl::Status SendHello(int, absl::string_view, int, const Deadline&);

  // Reads what has come.
  Greeting Read(Pending& pending) const;
  absl::Status AcceptOne();

  const int listener_;
  const std::string secret_;
  const size_t most_pending_;
  std::deque<Pending> pending_;  // The oldest first.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_RANK_ACCEPTOR_H_
