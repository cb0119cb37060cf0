// A listening TCP socket at which other ranks of a group connect.
#ifndef SYNCLINE_BACKENDS_COMMON_LISTENER_H_
#define SYNCLINE_BACKENDS_COMMON_LISTENER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/tls/context.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"
#include "syncline/peer.h"

namespace syncline::backends {

// One rank's listening socket, with a random secret that a peer must prove to know (RankAcceptor).
// Only the ranks of the job can read the secret in their store, so no stranger takes a rank's
// place. That does not keep those who can read or change packets on the network from reading or
// changing the data; TLS does.
//
// It may listen at several addresses of its host, so that what it carries is shared among
// interfaces.
//
// Immutable once made. Owns the sockets.
class Listener {
 public:
  // Listens on a free port of `address` (base::ListenOn), and on one of each of `more`. A
  // NetworkError if that is impossible; errors of tls::Context::FromEnvironment.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address,
                                                        const std::vector<std::string>& more = {});

  // "ADDRESS PORT SECRET", and " ADDRESS PORT" of each further address: what the other ranks need
  // to connect. It goes through the store.
  std::string endpoint() const;

  // That of the first address comes first.
  std::vector<int> sockets() const;
  absl::string_view secret() const { return secret_; }

  // Connections to this listener, and those of its rank to others, are encrypted by it; null if
  // they are not.
  const std::shared_ptr<tls::Context>& tls() const { return tls_; }

 private:
  struct Place {
    base::UniqueFd socket;
    std::string address;
    int port;
  };

  Listener(std::vector<Place> places, std::shared_ptr<tls::Context> tls);

  const std::vector<Place> places_;
  const std::string secret_;
  const std::shared_ptr<tls::Context> tls_;
};

// Connects to the Listener of `endpoint`, with `number`, by which the other side knows this rank.
// `tls` is that of this rank's own Listener. Of several connections to one listener, stream 0, 1,
// ... goes to one of its addresses after the other. The other side answers once it accepts: see
// Introduction::Finish. A NetworkError if the endpoint is not one or cannot be reached, a
// TimeoutError at the deadline. Errors of `check`, if there is one, end it too, as in WaitInSlices.
absl::StatusOr<Introduction> ConnectToListener(const std::string& endpoint, int number,
                                               const Deadline& deadline,
                                               tls::Context* tls = nullptr, int stream = 0,
                                               const PeerCheck& check = nullptr);

// Runs `wait`, which returns a TimeoutError at the deadline that it is given, for one slice of
// `deadline` after another until it returns anything else, or `check` an error: the ranks that this
// one waits for may have died, or given up joining.
absl::Status WaitInSlices(const Deadline& deadline, absl::FunctionRef<absl::Status()> check,
                          absl::FunctionRef<absl::Status(const Deadline& slice)> wait);

// ConnectToListener and Introduction::Finish, in slices. Connects again where the connection was
// dropped for those of strangers, and at the first address where another cannot be reached.
absl::StatusOr<tls::Stream> IntroduceInSlices(const std::string& endpoint, int number,
                                              const Deadline& deadline,
                                              absl::FunctionRef<absl::Status()> check,
                                              tls::Context* tls, int stream = 0);

// RankAcceptor::Accept, in slices.
absl::StatusOr<RankAcceptor::Connection> AcceptInSlices(RankAcceptor& acceptor,
                                                        const Deadline& deadline,
                                                        absl::FunctionRef<absl::Status()> check);

// Whether the other side has ended the connection. Reads nothing.
bool HasEnded(int socket);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_LISTENER_H_
