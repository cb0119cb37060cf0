// The algorithms of backend mpi's send and recv.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_P2P_H_
#define SYNCLINE_BACKENDS_MPI_MPI_P2P_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/mpi/message.h"
#include "backends/mpi/mpi_connections.h"
#include "backends/mpi/tag_matcher.h"
#include "syncline/backend.h"
#include "syncline/tensor.h"

namespace syncline::mpi {

// MPI matches messages by sender and tag, and keeps those that come unexpected; receives from any
// rank are MPI_ANY_SOURCE. Only tags beyond MPI's are matched here. A header that describes the
// call goes before the elements. Short ones travel with it. Longer ones, on the communicator of
// collectives under a tag of their own, are received once the header has shown that they fit.
//
// Thread-safe as far as include/syncline/backend.h allows calls beside each other. Errors are those
// of MpiRequests::Wait, and a MismatchError if what was sent does not fit. Borrows the connections.
class MpiP2p {
 public:
  explicit MpiP2p(MpiConnections& connections) : connections_(connections), matcher_(connections) {}

  absl::Status Send(const Tensor& tensor, const CallContext& context);
  // Returns the rank that sent.
  absl::StatusOr<int> Recv(const Tensor& tensor, const CallContext& context);

 private:
  // Receives a header, and the elements if they are short.
  absl::Status ReceiveMessage(const CallContext& context, const std::shared_ptr<Message>& message,
                              int& source);

  MpiConnections& connections_;
  TagMatcher matcher_;
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_P2P_H_
