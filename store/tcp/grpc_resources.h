// Whether this process may have what gRPC takes for granted.
#ifndef SYNCLINE_STORE_TCP_GRPC_RESOURCES_H_
#define SYNCLINE_STORE_TCP_GRPC_RESOURCES_H_

#include "absl/status/status.h"

namespace syncline::tcp_store {

// OK, or a BackendError that names the limit to raise. gRPC starts about ten threads and opens
// about ten descriptors when it is first used. Where it cannot have them it hangs or aborts, and so
// does the process's end; so whoever is about to use gRPC asks first. It is tried out, once in a
// process that has them, by having as many for a moment; threads only where the limits of the user
// or the container are below some thousands. Thread-safe.
absl::Status CheckGrpcResources();

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_GRPC_RESOURCES_H_
