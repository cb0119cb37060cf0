// Init-method URLs: where a job's store is, and which rank this is.
#ifndef SYNCLINE_CORE_INIT_METHOD_H_
#define SYNCLINE_CORE_INIT_METHOD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/store.h"

namespace syncline {

// What an init method says.
struct InitMethod {
  std::string scheme;  // Of the store: a name in StoreRegistry.
  StoreConfig store;
  std::string prefix;  // What keeps restarts of one job apart in a shared store; may be empty.
  int64_t rank = 0;
  int64_t size = 1;
};

// Reads `url` (see WorldOptions) and, for env://, the environment. `rank` and `size` >= 0 take
// precedence. ArgumentError that says what is missing, unknown or out of range.
absl::StatusOr<InitMethod> ParseInitMethod(absl::string_view url, int64_t rank, int64_t size);

}  // namespace syncline

#endif  // SYNCLINE_CORE_INIT_METHOD_H_
