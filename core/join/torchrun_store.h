// The store of a job whose torchrun serves a store of torch's own at MASTER_PORT.
//
// Nothing reserves another port for the job. So rank 0 serves at the first of a few ports after
// MASTER_PORT that is free, and the other ranks look there for the store that holds the job's key.
// They pass by other listeners: strangers, stores of other jobs, and those of earlier attempts,
// whose processes may not all have ended.
#ifndef SYNCLINE_CORE_JOIN_TORCHRUN_STORE_H_
#define SYNCLINE_CORE_JOIN_TORCHRUN_STORE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/join/opened_store.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::join {

// How many ports may hold the store.
inline constexpr int kTorchrunPorts = 8;

// They follow `master_port`, or lie below it where the numbers of ports end. In the order in which
// they are tried.
std::vector<int> TorchrunPorts(int master_port);

// Serves or finds the store, as `config.role` says; `config.port` is MASTER_PORT, and `job` the key
// that stores of other jobs do not have.
//
// NetworkError if all ports are taken, if a process of an earlier start of the job still serves its
// store at one, or if the store has not come until `deadline`: then it says who else listens at the
// ports, as one of them may be the job's store, with another secret. ArgumentError if this process
// has no secret, or no certificate, that SYNCLINE_SECRET_FILE or SYNCLINE_TLS speaks of.
absl::StatusOr<OpenedStore> OpenTorchrunStore(const StoreConfig& config, const std::string& job,
                                              const Deadline& deadline);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_TORCHRUN_STORE_H_
