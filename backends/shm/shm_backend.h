// Makes backend shm for other backends, which build on it.
#ifndef SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
#define SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "syncline/backend.h"

namespace syncline::shm {

// When ranks compare a call with those of the others. The same on all ranks of a group.
enum class Comparison {
  kAsTheyGo,  // As the contract of Backend says: a rank that only gives compares later.
  kAtOnce,    // In the call, on every rank: each waits there for all others.
};

// What SYNCLINE_DEBUG says: kAtOnce for "detail".
Comparison DefaultComparison();

// Makes one rank of a group. Collective. A MismatchError that names the ranks if `comparison` is
// not the same on all of them; other errors are those of a BackendRegistry's factory.
absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config,
                                                 Comparison comparison);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
