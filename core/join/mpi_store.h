// The store of the processes of an MPI communicator, which they find by MPI_Bcast.
#ifndef SYNCLINE_CORE_JOIN_MPI_STORE_H_
#define SYNCLINE_CORE_JOIN_MPI_STORE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/join/opened_store.h"
#include "syncline/deadline.h"
#include "syncline/mpi_comm.h"

namespace syncline::join {

// What the user has said of the processes that meet.
struct MpiMeeting {
  std::optional<MpiComm> comm;  // MPI_COMM_WORLD if it is not set.
  int rank = -1;                // This process's, and how many there are; -1: not said.
  int size = -1;
};

// Process 0 of the communicator hosts a tcp store, and tells the
// others its address and its secret, which is a random one unless SYNCLINE_SECRET_FILE is set. On
// one host the address is loopback, otherwise that at which other hosts reach process 0's (see
// host_address.h). A single process gets a hash store.
//
// Collective over the communicator. Rank and size of the result are MPI's. Errors are those of
// World::FromMpi. Where process 0 cannot host the store, all processes get a NetworkError with its
// reason; where the rank or size that one was given is not MPI's, an ArgumentError that says so.
absl::StatusOr<OpenedStore> OpenMpiStore(const MpiMeeting& meeting, absl::Duration store_timeout,
                                         const Deadline& deadline);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_MPI_STORE_H_
