#include "launch/health.h"

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
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace syncline {
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

HeartbeatWatch::HeartbeatWatch(absl::Duration limit, const Clock& clock)
    : limit_(limit), clock_(clock), looked_(clock.Now()) {}

absl::Status HeartbeatWatch::Watch(int local_rank, const std::string& file) {
  if (!enabled()) return absl::OkStatus();
  const UniqueFd made(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::optional<absl::Time> written = WrittenAt(file);
  if (!made.valid() || !written.has_value()) {
    return BackendError(absl::StrCat("the heartbeat file '", file, "' cannot be made: ",
                                     std::strerror(errno), ". Is the file system of TMPDIR full?"));
  }
  Heart heart;
  heart.file = file;
  heart.written = *written;
  heart.beat = clock_.Now();
  if (hearts_.empty()) looked_ = clock_.Now();
  hearts_[local_rank] = std::move(heart);
  return absl::OkStatus();
}

void HeartbeatWatch::Forget(int local_rank) { hearts_.erase(local_rank); }

void HeartbeatWatch::Look(Heart* heart) const {
  const std::optional<absl::Time> written = WrittenAt(heart->file);
  if (!written.has_value() || *written == heart->written) return;
  const absl::Time now = clock_.Now();
  const absl::Duration age = absl::Now() - *written;
  heart->written = *written;
  heart->beat = std::max(heart->beat, now - std::clamp(age, absl::ZeroDuration(), now - looked_));
  heart->has_beaten = true;
}

std::vector<HeartbeatWatch::Overdue> HeartbeatWatch::Check() {
  const absl::Time now = clock_.Now();
  std::vector<Overdue> overdue;
  for (auto& [local_rank, heart] : hearts_) {
    Look(&heart);
    const bool aborted = heart.kill_at < absl::InfiniteFuture();
    if (!aborted && now - heart.beat >= limit_) {
      heart.kill_at = now + kAbortGrace;
      overdue.push_back({local_rank, SIGABRT, Describe(heart)});
    } else if (aborted && now >= heart.kill_at && !std::exchange(heart.killed, true)) {
      overdue.push_back({local_rank, SIGKILL, Describe(heart)});
    }
  }
  looked_ = now;
  return overdue;
}

absl::Time HeartbeatWatch::deadline() const {
  if (hearts_.empty()) return absl::InfiniteFuture();
  absl::Time next = looked_ + limit_ / 4;
  for (const auto& [local_rank, heart] : hearts_) {
    if (heart.killed) continue;
    const bool aborted = heart.kill_at < absl::InfiniteFuture();
    next = std::min(next, aborted ? heart.kill_at : heart.beat + limit_);
  }
  return next;
}

std::optional<absl::Duration> HeartbeatWatch::Age(int local_rank) const {
  const auto found = hearts_.find(local_rank);
  if (found == hearts_.end()) return std::nullopt;
  return clock_.Now() - found->second.beat;
}

std::string HeartbeatWatch::Describe(const Heart& heart) const {
  return absl::StrCat("has made no progress for ", Seconds(clock_.Now() - heart.beat),
                      " s (limit --health-timeout=", Seconds(limit_), ")",
                      heart.has_beaten ? ""
                                       : ": no heartbeat since its start. Does it call "
                                         "syncline.elastic.heartbeat()?");
}

}  // namespace syncline
