#include "core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/env.h"

namespace syncline {
namespace {

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
  const std::optional<std::string> wanted = GetEnv(kLevelVariable);
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

void SetLogSink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  absl::MutexLock lock(&TheSink().mutex);
  TheSink().sink = std::move(shared);
}

}  // namespace syncline
