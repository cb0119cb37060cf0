#include "syncline/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/thread.h"

namespace syncline {
namespace {

constexpr size_t kMaxBackgroundLines = 16;
constexpr absl::string_view kLevelVariable = "SYNCLINE_LOG_LEVEL";

struct Level {
  LogLevel level;
  absl::string_view name;
  spdlog::level::level_enum spdlog_level;
};

constexpr Level kLevels[] = {
    {LogLevel::kDebug, "debug", spdlog::level::debug},
    {LogLevel::kInfo, "info", spdlog::level::info},
    {LogLevel::kWarning, "warning", spdlog::level::warn},
    {LogLevel::kError, "error", spdlog::level::err},
};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return kLevels[static_cast<int>(level)].spdlog_level;
}

// A logger outside spdlog's registry: one in the same process that others set up keeps apart.
spdlog::logger* MakeLogger() {
  auto* const logger =
      new spdlog::logger("syncline", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[%L %H:%M:%S.%f %P] %v");
  logger->set_level(spdlog::level::warn);
  const std::optional<std::string> wanted = base::GetEnv(kLevelVariable);
  if (!wanted.has_value()) return logger;
  for (const Level& level : kLevels) {
    if (*wanted == level.name) {
      logger->set_level(level.spdlog_level);
      return logger;
    }
  }
  logger->warn("SYNCLINE_LOG_LEVEL is '{}'; it must be debug, info, warning or error", *wanted);
  return logger;
}

// Never destroyed, both: other threads may log while the process exits.

spdlog::logger& TheLogger() {
  static spdlog::logger* const logger = MakeLogger();
  return *logger;
}

struct SinkHolder {
  absl::Mutex mutex;
  std::shared_ptr<const LogSink> sink ABSL_GUARDED_BY(mutex);
};

SinkHolder& TheSink() {
  static auto* const holder = new SinkHolder;
  return *holder;
}

std::shared_ptr<const LogSink> CurrentSink() {
  absl::MutexLock lock(&TheSink().mutex);
  return TheSink().sink;
}

// What LogInBackground has taken and its thread, which ends when there is no more, has to write.
struct BackgroundLines {
  absl::Mutex mutex;
  std::deque<std::pair<LogLevel, std::string>> waiting ABSL_GUARDED_BY(mutex);
  int64_t num_dropped ABSL_GUARDED_BY(mutex) = 0;
  bool has_writer ABSL_GUARDED_BY(mutex) = false;
};

BackgroundLines& TheBackgroundLines() {
  static auto* const lines = new BackgroundLines;
  return *lines;
}

void WriteBackgroundLines() {
  BackgroundLines& lines = TheBackgroundLines();
  while (true) {
    std::pair<LogLevel, std::string> line;
    int64_t num_dropped = 0;
    {
      absl::MutexLock lock(&lines.mutex);
      lines.has_writer = !lines.waiting.empty();
      if (!lines.has_writer) return;
      line = std::move(lines.waiting.front());
      lines.waiting.pop_front();
      num_dropped = std::exchange(lines.num_dropped, 0);
    }
    Log(line.first, line.second);
    if (num_dropped > 0) {
      Log(LogLevel::kWarning, absl::StrCat(num_dropped, " lines of the log were dropped, because ",
                                           "nobody read those before them"));
    }
  }
}

}  // namespace

void Log(LogLevel level, absl::string_view message) {
  spdlog::logger& logger = TheLogger();
  if (!logger.should_log(ToSpdlog(level))) return;
  if (const std::shared_ptr<const LogSink> sink = CurrentSink()) {
    (*sink)(level, message);
  } else {
    logger.log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
  }
}

void LogInBackground(LogLevel level, std::string message) {
  if (!TheLogger().should_log(ToSpdlog(level))) return;
  BackgroundLines& lines = TheBackgroundLines();
  {
    absl::MutexLock lock(&lines.mutex);
    if (lines.waiting.size() >= kMaxBackgroundLines) {
      ++lines.num_dropped;
      return;
    }
    lines.waiting.emplace_back(level, std::move(message));
    if (lines.has_writer) return;
    lines.has_writer = true;
  }
  absl::StatusOr<std::thread> writer = base::StartThread("the log", WriteBackgroundLines);
  if (writer.ok()) return writer->detach();
  absl::MutexLock lock(&lines.mutex);  // The next line starts one, and finds this one waiting.
  lines.has_writer = false;
}

std::string FormatLogLine(LogLevel level, absl::string_view message) {
  const absl::Time now = absl::Now();
  return absl::StrCat("[", absl::string_view("DIWE").substr(static_cast<size_t>(level), 1), " ",
                      absl::FormatTime("%H:%M:%E6S", now, absl::LocalTimeZone()), " ", getpid(),
                      "] ", message);
}

void SetLogSink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  absl::MutexLock lock(&TheSink().mutex);
  TheSink().sink = std::move(shared);
}

}  // namespace syncline
