// MpiComm: a communicator of the MPI library that the program itself uses.
#ifndef SYNCLINE_MPI_COMM_H_
#define SYNCLINE_MPI_COMM_H_

#include <cstdint>

#include "absl/strings/string_view.h"

// What MPI_Comm points to: in Open MPI, and in the standard ABI of MPI 5.
struct ompi_communicator_t;
struct MPI_ABI_Comm;

namespace syncline {

// An MPI_Comm as it is in any <mpi.h>, which this header does not need: its type tells of which
// family of libraries it is. A value, which owns nothing.
//
//   MPI_Comm workers;  // Made by MPI_Comm_split.
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, World::FromMpi(workers));
class MpiComm {
 public:
  // Implicit, so that an MPI_Comm may be passed as it is.
  MpiComm(ompi_communicator_t* comm)
      : MpiComm("Open MPI", reinterpret_cast<intptr_t>(comm)) {}                           // NOLINT
  MpiComm(MPI_ABI_Comm* comm) : MpiComm("MPI 5 ABI", reinterpret_cast<intptr_t>(comm)) {}  // NOLINT
  // MPICH's, and that of what shares its ABI: Intel MPI, Cray MPICH, MVAPICH.
  MpiComm(int comm)  // NOLINT
      : MpiComm("MPICH", static_cast<intptr_t>(static_cast<unsigned int>(comm))) {}

  // For bindings, which have the handle as an integer: `family` is "Open MPI", "MPICH" or "MPI 5
  // ABI", and must outlive the object.
  MpiComm(absl::string_view family, intptr_t handle) : family_(family), handle_(handle) {}

  absl::string_view family() const { return family_; }
  // The handle's bits, in the lower bytes.
  intptr_t handle() const { return handle_; }

 private:
  absl::string_view family_;
  intptr_t handle_;
};

}  // namespace syncline

#endif  // SYNCLINE_MPI_COMM_H_
