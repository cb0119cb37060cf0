// The processes of an MPI communicator, before they have a store.
#ifndef SYNCLINE_CORE_JOIN_MPI_PROCESSES_H_
#define SYNCLINE_CORE_JOIN_MPI_PROCESSES_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "syncline/deadline.h"
#include "syncline/mpi_comm.h"
#include "syncline/registry.h"

namespace syncline::join {

// What core/join needs of MPI. Backend mpi, which is above core, registers its implementation.
//
// The functions are collective over all processes, which call them in one order. They block, until
// the deadline at the most: after that all further calls fail. Not thread-safe.
class MpiProcesses {
 public:
  virtual ~MpiProcesses() = default;

  virtual int rank() const = 0;  // This process's, from 0 to size() - 1.
  virtual int size() const = 0;
  // For messages: "MPICH 5.0.2 (/usr/lib/libmpi.so.12)".
  virtual std::string library() const = 0;

  // The parts of all processes, one after the other by rank. All parts have one size.
  virtual absl::StatusOr<std::string> Allgather(absl::string_view part,
                                                const Deadline& deadline) = 0;
  // Replaces `data`, which has one size on all processes, by that of process 0.
  virtual absl::Status Bcast(std::string& data, const Deadline& deadline) = 0;
};

// Has one entry, "mpi", where backend mpi is linked in. It makes the processes of the communicator,
// or of MPI_COMM_WORLD if none is given; it loads and initialises MPI if need be. Collective; the
// errors are those of World::FromMpi.
using MpiProcessesRegistry = Registry<MpiProcesses, const std::optional<MpiComm>&, const Deadline&>;

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_MPI_PROCESSES_H_
