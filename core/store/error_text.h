// An error as text, by which one rank tells it to all through a store.
#ifndef SYNCLINE_CORE_STORE_ERROR_TEXT_H_
#define SYNCLINE_CORE_STORE_ERROR_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace syncline::store {

// The kind of `error`, its ErrorOrigin and its message, in a line each. Requires !error.ok().
std::string SerializeError(const absl::Status& error);

// The inverse, for bytes that another process has written: nothing if they are no error. `size` is
// that of the group; ranks that it does not have are dropped.
absl::optional<absl::Status> ParseError(absl::string_view text, int size);

}  // namespace syncline::store

#endif  // SYNCLINE_CORE_STORE_ERROR_TEXT_H_
