#include "syncline/launcher_heartbeat.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "syncline/log.h"

namespace syncline {
namespace {

constexpr int64_t kInterval = 100'000'000;  // Nanoseconds.

// Precise to a few milliseconds; takes a few nanoseconds.
int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

std::shared_ptr<Heartbeat> Heartbeat::Create() {
  return std::make_shared<Heartbeat>(base::GetEnv("SYNCLINE_HEARTBEAT_FILE").value_or(""));
}

Heartbeat::Heartbeat(std::string file) : file_(std::move(file)) {}

void Heartbeat::Beat() {
  if (file_.empty()) return;
  const int64_t now = Now();
  // Only the thread that moves next_ touches the file; next_ guards no other memory.
  int64_t next = next_.load(std::memory_order_relaxed);
  if (now < next || !next_.compare_exchange_strong(next, now + kInterval)) return;
  Touch();
}

void Heartbeat::Touch() {
  const int fd = open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  const bool touched = fd >= 0 && futimens(fd, nullptr) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (touched || has_failed_.exchange(true)) return;
  Log(LogLevel::kWarning,
      absl::StrCat("the heartbeat file '", file_, "', which SYNCLINE_HEARTBEAT_FILE names, ",
                   "cannot be touched: ", std::strerror(error),
                   "; the launcher may take this process for stuck"));
}

}  // namespace syncline
