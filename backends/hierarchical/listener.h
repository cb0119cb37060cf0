// A listening TCP socket at which the other ranks of a rail connect.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_LISTENER_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_LISTENER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"

namespace syncline::hierarchical {

// One rank's listening socket, with a random secret that a peer must send first. Only the ranks of
// the job can read the secret in their store, so no stranger takes a rank's place. The secret does
// not keep those who can read or change packets on the network from reading or changing the data.
//
// Immutable once made. Owns the socket.
class Listener {
 public:
  // Listens on a free port of `address`. A NetworkError if that is impossible.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);

  // "ADDRESS PORT SECRET": what the other ranks need to connect. It goes through the store.
  std::string endpoint() const;

  int socket() const { return socket_.get(); }
  absl::string_view secret() const { return secret_; }

 private:
  Listener(base::UniqueFd socket, std::string address, int port);

  const base::UniqueFd socket_;
  const std::string address_;
  const int port_;
  const std::string secret_;
};

// Connects to the Listener of `endpoint` and sends the secret with `number`, by which the other
// side knows this rank. A NetworkError if the endpoint is not one or cannot be reached, a
// TimeoutError at the deadline.
absl::StatusOr<base::UniqueFd> ConnectToListener(const std::string& endpoint, int number,
                                                 const Deadline& deadline);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_LISTENER_H_
