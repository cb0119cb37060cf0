// The process environment. The only file of the library that calls getenv. Thread-safe while nobody
// changes the environment.
#ifndef SYNCLINE_CORE_BASE_ENV_H_
#define SYNCLINE_CORE_BASE_ENV_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::base {

// A function that returns the value of an environment variable: GetEnv, or a test's table.
using EnvironmentLookup = std::function<std::optional<std::string>(absl::string_view name)>;

// The value of environment variable `name`; nothing if it is unset. An empty value is a value.
std::optional<std::string> GetEnv(absl::string_view name);

// The value of `name`. If it is unset: INVALID_ARGUMENT that names it and says what sets it.
absl::StatusOr<std::string> RequireEnv(absl::string_view name);

// As RequireEnv, for an integer in [low, high].
absl::StatusOr<int64_t> RequireEnvInt(absl::string_view name, int64_t low, int64_t high);

// Whether ranks compare their calls where that costs something: SYNCLINE_DEBUG is unset or "on",
// not "off". INVALID_ARGUMENT for any other value.
absl::StatusOr<bool> DebugChecks();

// The job's secret: the contents of the file that SYNCLINE_SECRET_FILE names, which only its owner
// may be able to read (mode 0600). Empty if the variable is unset: the job has no secret.
absl::StatusOr<std::string> JobSecret();

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_ENV_H_
