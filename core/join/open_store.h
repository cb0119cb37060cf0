// Opens the store that an init method names.
#ifndef SYNCLINE_CORE_JOIN_OPEN_STORE_H_
#define SYNCLINE_CORE_JOIN_OPEN_STORE_H_

#include "absl/status/statusor.h"
#include "core/join/init_method.h"
#include "core/join/opened_store.h"
#include "syncline/deadline.h"

namespace syncline::join {

// Opens the store of `method`, and hosts it if that is this process's task. Thread-safe.
//
// For tcp with a rank, rank 0 hosts. For tcp without ranks, the process that binds the address
// first hosts, and the others connect; a process on another host than the address names cannot bind
// it. A rank 0 that comes after such a host connects too. For multicast see multicast_discovery.h.
//
// NetworkError or TimeoutError if the store can neither be hosted nor reached by the deadline;
// ArgumentError if the init method does not fit the other processes' (multicast), or rank and size
// are not MPI's. Over MPI, see mpi_store.h.
absl::StatusOr<OpenedStore> OpenStore(const InitMethod& method, const Deadline& deadline);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_OPEN_STORE_H_
