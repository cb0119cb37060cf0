// Logging, to stderr, behind one function so that a language binding can redirect it.
#ifndef SYNCLINE_CORE_LOG_H_
#define SYNCLINE_CORE_LOG_H_

#include "absl/strings/string_view.h"

namespace syncline {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line if `level` is at least that of the environment variable SYNCLINE_LOG_LEVEL
// ("debug", "info", "warning", "error"; warning by default). Thread-safe.
void Log(LogLevel level, absl::string_view message);

}  // namespace syncline

#endif  // SYNCLINE_CORE_LOG_H_
