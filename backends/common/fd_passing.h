// Passes the shared-memory descriptor from rank 0 to the other ranks over an abstract Unix socket.
#ifndef SYNCLINE_BACKENDS_COMMON_FD_PASSING_H_
#define SYNCLINE_BACKENDS_COMMON_FD_PASSING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/common/peer_processes.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"
#include "syncline/peer.h"

namespace syncline::backends {

// Rank 0's side: listens on a Unix socket in the abstract name space, which no file system and no
// other network namespace knows. A client must be of the same user, as the kernel says, and know
// the secret, which only the ranks of the job can read in their store. Owns the socket. Not
// thread-safe.
class FdServer {
 public:
  // Listens from then on. A BackendError if the socket cannot be made.
  static absl::StatusOr<std::unique_ptr<FdServer>> Open();

  // The socket's name and secret, in one string, for ReceiveFd.
  std::string endpoint() const;

  int socket() const { return socket_.get(); }

  // Gives a copy of `descriptor` to each of the ranks 1 to size - 1 once, and lets `processes`, if
  // it is not null, watch them. A TimeoutError names the ranks that have not come, a NetworkError
  // those of them that have died. Strangers are sent away and delay nobody. Errors of `check`, if
  // there is one, which is called now and then, end it too.
  absl::Status Serve(int descriptor, int size, const Deadline& deadline,
                     PeerProcesses* processes = nullptr, const PeerCheck& check = nullptr);

 private:
  FdServer(base::UniqueFd socket, std::string name);

  const base::UniqueFd socket_;
  const std::string name_;
  const std::string secret_;
};

// The side of the other ranks: connects to `endpoint` as rank `rank`, and returns a new descriptor.
// Lets `processes`, if it is not null, watch rank 0. A TimeoutError if rank 0 does not answer, a
// NetworkError if nobody listens or rank 0 hangs up, a BackendError if `endpoint` is malformed or
// this process lacks something.
absl::StatusOr<base::UniqueFd> ReceiveFd(absl::string_view endpoint, int rank,
                                         const Deadline& deadline,
                                         PeerProcesses* processes = nullptr);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_FD_PASSING_H_
