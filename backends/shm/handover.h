// How a segment comes from the rank that makes it to the others.
#ifndef SYNCLINE_BACKENDS_SHM_HANDOVER_H_
#define SYNCLINE_BACKENDS_SHM_HANDOVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/shm/peer_watchdog.h"
#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace syncline {

// Where one rank waits for the others: a Unix socket in the abstract name space, which no file
// system and no other network namespace knows. Who asks must be of the same user, as the kernel
// says, and know the secret, which only the ranks of the job can read in their store.
class HandoverPoint {
 public:
  static absl::StatusOr<std::unique_ptr<HandoverPoint>> Open();

  // Its name and secret, in one word, for ReceiveDescriptor.
  std::string ticket() const;

  int socket() const { return socket_.get(); }

  // Gives `descriptor` to ranks 1 to size - 1, each once, and has `watchdog`, if there is one,
  // watch those that ask. A TimeoutError names the ranks that have not asked; a NetworkError those
  // of them that have died. Strangers are sent away and delay nobody.
  absl::Status Serve(int descriptor, int size, const Deadline& deadline,
                     PeerWatchdog* watchdog = nullptr);

 private:
  HandoverPoint(UniqueFd socket, std::string name);

  const UniqueFd socket_;
  const std::string name_;
  const std::string secret_;
};

// Asks, as rank `rank`, at the point of `ticket`; returns a new descriptor. Has `watchdog`, if
// there is one, watch rank 0.
absl::StatusOr<UniqueFd> ReceiveDescriptor(absl::string_view ticket, int rank,
                                           const Deadline& deadline,
                                           PeerWatchdog* watchdog = nullptr);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_HANDOVER_H_
