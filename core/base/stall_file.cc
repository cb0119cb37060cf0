#include "core/base/stall_file.h"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/env.h"
#include "core/base/process_state.h"
#include "core/base/rank_ranges.h"
#include "syncline/log.h"

namespace syncline::base {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kVariable[] = "SYNCLINE_STALL_FILE";

// What bounds the file: to some 80 KiB.
constexpr int kMaxLasting = 16;
constexpr int kMaxEnded = 8;
constexpr size_t kMaxText = 1024;
constexpr size_t kMaxName = 256;

// A string of JSON. Other bytes than ASCII's become '?': they may be cut in the middle of one, and
// JSON takes UTF-8 only.
std::string Quoted(absl::string_view text, size_t limit) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, limit)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  return quoted + "\"";
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.3f", absl::ToDoubleSeconds(duration));
}

// Bounded, so that waits that many ranks keep cost no memory.
std::string FactsOf(const Stall& stall) {
  const std::string missing = stall.missing.empty() ? "" : RankRanges(stall.missing);
  return absl::StrCat(
      "\"rank\": ", stall.rank, ", \"operation\": ", Quoted(stall.operation, kMaxName),
      ", \"missing\": ", Quoted(missing, kMaxName), ", \"text\": ", Quoted(stall.text, kMaxText));
}

}  // namespace

StallFile& StallFile::OfProcess() {
  static StallFile* const file = new StallFile(GetEnv(kVariable).value_or(""));
  return *file;
}

StallFile::StallFile(std::string path) : path_(std::move(path)) {}

int64_t StallFile::Open() {
  if (path_.empty() || fork_.InChild()) return 0;
  absl::MutexLock lock(&mutex_);
  waits_[++last_id_];
  return last_id_;
}

void StallFile::Report(int64_t id, const Stall& stall, bool is_warning) {
  if (path_.empty() || fork_.InChild()) return;
  absl::MutexLock lock(&mutex_);
  const auto it = waits_.find(id);
  if (it == waits_.end() || it->second.has_ended) return;
  Wait& wait = it->second;
  wait.facts = FactsOf(stall);
  wait.began = Clock::now() - absl::ToChronoNanoseconds(stall.waited);
  if (is_warning) ++wait.warnings;
  Write();
}

void StallFile::Close(int64_t id) {
  if (path_.empty() || fork_.InChild()) return;
  absl::MutexLock lock(&mutex_);
  const auto it = waits_.find(id);
  if (it == waits_.end()) return;
  Wait& wait = it->second;
  const bool is_reported = !wait.facts.empty();
  if (wait.warnings > 0) {
    wait.has_ended = true;
    wait.waited = absl::FromChrono(Clock::now() - wait.began);
    DropOldest();
  } else {
    waits_.erase(it);
  }
  if (is_reported) Write();
}

void StallFile::DropOldest() {
  int ended = 0;
  auto oldest = waits_.end();
  for (auto it = waits_.begin(); it != waits_.end(); ++it) {
    if (!it->second.has_ended) continue;
    if (++ended == 1) oldest = it;
  }
  if (ended > kMaxEnded) waits_.erase(oldest);
}

std::string StallFile::Text() const {
  const Clock::time_point now = Clock::now();
  std::vector<std::string> waits;
  int lasting = 0;
  for (const auto& [id, wait] : waits_) {
    if (wait.facts.empty() || (!wait.has_ended && ++lasting > kMaxLasting)) continue;
    const absl::Duration waited = wait.has_ended ? wait.waited : absl::FromChrono(now - wait.began);
    waits.push_back(absl::StrCat("{\"id\": ", id, ", ", wait.facts, ", \"waited\": ",
                                 Seconds(waited), ", \"warnings\": ", wait.warnings,
                                 ", \"ended\": ", wait.has_ended ? "true" : "false", "}"));
  }
  return absl::StrCat("{\"pid\": ", getpid(),
                      ", \"pid_namespace\": ", Quoted(PidNamespace(), kMaxName),
                      ", \"time\": ", Seconds(absl::Now() - absl::UnixEpoch()), ", \"waits\": [",
                      absl::StrJoin(waits, ", "), "]}\n");
}

void StallFile::Write() {
  // Of its own name: children of the same variable may write, too.
  const std::string fresh = absl::StrCat(path_, ".", getpid());
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << Text();
  file.close();
  if (!file.fail() && rename(fresh.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  unlink(fresh.c_str());
  if (std::exchange(has_failed_, true)) return;
  Log(LogLevel::kWarning,
      absl::StrCat("the file '", path_, "', which ", kVariable,
                   " names, cannot be written: ", std::strerror(error),
                   "; the launcher does not learn of operations that wait for long"));
}

void ReportStall(int64_t id, const Stall& stall, bool speaks) {
  if (speaks) Log(LogLevel::kWarning, stall.text);
  StallFile::OfProcess().Report(id, stall, speaks);
}

}  // namespace syncline::base
