// How a segment comes from the rank that makes it to the others.
#ifndef SYNCLINE_BACKENDS_SHM_HANDOVER_H_
#define SYNCLINE_BACKENDS_SHM_HANDOVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/deadline.h"

namespace syncline {

// Where one rank waits for the others: a Unix socket in the abstract name space, which no file
// system and no other network namespace knows. Who asks must be of the same user, as the kernel
// says, and know the secret, which only the ranks of the job can read in their store.
class HandoverPoint {
 public:
  static absl::StatusOr<std::unique_ptr<HandoverPoint>> Open();
  ~HandoverPoint();

  HandoverPoint(const HandoverPoint&) = delete;
  HandoverPoint& operator=(const HandoverPoint&) = delete;

  // Its name and secret, in one word, for ReceiveDescriptor.
  std::string ticket() const;

  // Gives `descriptor` to ranks 1 to size - 1, each once. A TimeoutError names those that have not
  // asked. Strangers are sent away and cost no more than a moment.
  absl::Status Serve(int descriptor, int size, const Deadline& deadline);

 private:
  HandoverPoint(int socket, std::string name, std::string secret);

  int socket_;
  const std::string name_;
  const std::string secret_;
};

// Asks, as rank `rank`, at the point of `ticket`; returns a new descriptor, which the caller owns.
absl::StatusOr<int> ReceiveDescriptor(absl::string_view ticket, int rank, const Deadline& deadline);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_HANDOVER_H_
