// The one check of a call's arguments, for all backends.
#ifndef SYNCLINE_CORE_GROUP_CHECK_ARGUMENTS_H_
#define SYNCLINE_CORE_GROUP_CHECK_ARGUMENTS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "syncline/backend.h"
#include "syncline/collective.h"

namespace syncline::group {

// OK if ranks are in range; tensors are contiguous, on a device of the backend, writable where they
// are written, equal in type, of sizes that fit and apart from each other where they must be; and
// the whole is within the backend's capabilities. Else an ArgumentError, TypeError or
// UnsupportedError that says what was expected. `backend` is its name. ProcessGroup calls it before
// any byte moves, so that backends check nothing of one rank twice. The lists of a derived
// collective are checked where they come in, see core/group/derived.h.
absl::Status CheckArguments(const Collective& collective, const Capabilities& capabilities,
                            absl::string_view backend, int rank, int size);

// Whether this is a call on tensors of the CPU with which CheckArguments finds nothing wrong. It
// may be false for such a call too. On the way of every call: it makes no Status.
bool IsPlain(const Collective& collective, const Capabilities& capabilities, int rank, int size);

// Whether the call of `rank` writes to collective.tensor.
bool WritesTensor(const Collective& collective, int rank);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_CHECK_ARGUMENTS_H_
