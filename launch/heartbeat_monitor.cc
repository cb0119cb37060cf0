#include "launch/heartbeat_monitor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

std::optional<absl::Time> WrittenAt(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return std::nullopt;
  return absl::TimeFromTimespec(info.st_mtim);
}

std::string Seconds(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return seconds < 10 ? absl::StrCat(std::round(seconds * 10) / 10)
                      : absl::StrCat(std::round(seconds));
}

}  // namespace

HeartbeatMonitor::HeartbeatMonitor(absl::Duration limit, const Clock& clock)
    : limit_(limit), clock_(clock), last_check_(clock.Now()) {}

absl::Status HeartbeatMonitor::Watch(int local_rank, const std::string& file) {
  if (!enabled()) return absl::OkStatus();
  const base::UniqueFd made(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::optional<absl::Time> written = WrittenAt(file);
  if (!made.valid() || !written.has_value()) {
    return BackendError(absl::StrCat("the heartbeat file '", file, "' cannot be made: ",
                                     std::strerror(errno), ". Is the file system of TMPDIR full?"));
  }
  WorkerState worker;
  worker.file = file;
  worker.written = *written;
  worker.last_heartbeat = clock_.Now();
  if (workers_.empty()) last_check_ = clock_.Now();
  workers_[local_rank] = std::move(worker);
  return absl::OkStatus();
}

void HeartbeatMonitor::Forget(int local_rank) { workers_.erase(local_rank); }

void HeartbeatMonitor::ReadHeartbeat(WorkerState* worker) const {
  const std::optional<absl::Time> written = WrittenAt(worker->file);
  if (!written.has_value() || *written == worker->written) return;
  const absl::Time now = clock_.Now();
  const absl::Duration age = absl::Now() - *written;
  worker->written = *written;
  worker->last_heartbeat = std::max(worker->last_heartbeat,
                                    now - std::clamp(age, absl::ZeroDuration(), now - last_check_));
  worker->has_heartbeat = true;
}

std::vector<HeartbeatMonitor::Overdue> HeartbeatMonitor::Check() {
  const absl::Time now = clock_.Now();
  std::vector<Overdue> overdue;
  for (auto& [local_rank, worker] : workers_) {
    ReadHeartbeat(&worker);
    const bool aborted = worker.kill_at < absl::InfiniteFuture();
    if (!aborted && now - worker.last_heartbeat >= limit_) {
      worker.kill_at = now + kAbortGrace;
      overdue.push_back({local_rank, SIGABRT, Describe(worker)});
    } else if (aborted && now >= worker.kill_at && !std::exchange(worker.killed, true)) {
      overdue.push_back({local_rank, SIGKILL, Describe(worker)});
    }
  }
  last_check_ = now;
  return overdue;
}

absl::Time HeartbeatMonitor::deadline() const {
  if (workers_.empty()) return absl::InfiniteFuture();
  absl::Time next = last_check_ + limit_ / 4;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.killed) continue;
    const bool aborted = worker.kill_at < absl::InfiniteFuture();
    next = std::min(next, aborted ? worker.kill_at : worker.last_heartbeat + limit_);
  }
  return next;
}

std::optional<absl::Duration> HeartbeatMonitor::Age(int local_rank) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return std::nullopt;
  return clock_.Now() - found->second.last_heartbeat;
}

std::string HeartbeatMonitor::Describe(const WorkerState& worker) const {
  return absl::StrCat("has made no progress for ", Seconds(clock_.Now() - worker.last_heartbeat),
                      " s (limit --health-timeout=", Seconds(limit_), ")",
                      worker.has_heartbeat ? ""
                                           : ": no heartbeat since its start. Does it call "
                                             "syncline.elastic.heartbeat()?");
}

}  // namespace syncline::launch
