// Logging, to stderr, behind one function so that a language binding can redirect it.
#ifndef SYNCLINE_LOG_H_
#define SYNCLINE_LOG_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncline {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line if `level` is at least that of the environment variable SYNCLINE_LOG_LEVEL
// ("debug", "info", "warning", "error"; warning by default). Thread-safe.
void Log(LogLevel level, absl::string_view message);

// As Log, but never waits for whoever reads stderr: a thread of its own writes the line. Beyond a
// few lines that wait to be written it drops the new one, and later says how many it dropped.
void LogInBackground(LogLevel level, std::string message);

// The line that Log writes to stderr, without its end: "[W 12:34:56.789012 4711] message".
std::string FormatLogLine(LogLevel level, absl::string_view message);

// Sends the lines, of the same levels, to `sink` instead of stderr; to stderr again if it is null.
// It is called on any thread, several at a time, and must neither block nor log itself.
using LogSink = std::function<void(LogLevel level, absl::string_view message)>;
void SetLogSink(LogSink sink);

}  // namespace syncline

#endif  // SYNCLINE_LOG_H_
