// Makes backend shm for other backends, which build on it.
#ifndef SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
#define SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "backends/common/comparison.h"
#include "syncline/backend.h"

namespace syncline::shm {

// Makes one rank of a group. Collective. A MismatchError that names the ranks if `comparison` is
// not the same on all of them; other errors are those of a BackendRegistry's factory.
absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config,
                                                 backends::Comparison comparison);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
