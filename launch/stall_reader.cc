#include "launch/stall_reader.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace syncline::launch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxString = 1024;
constexpr size_t kMaxSources = 16;
constexpr double kMaxSeconds = 1e9;

// The contents of a regular file of at most `limit` bytes, or else nothing. Never blocks on what a
// worker may have put there instead, such as a FIFO or a link to a disk that does not answer.
std::string ReadFile(const std::string& path, int64_t limit) {
  const base::UniqueFd file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY));
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size > limit) {
    return "";
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t more = read(file.get(), &text[size], text.size() - size);
    if (more <= 0) break;
    size += static_cast<size_t>(more);
  }
  text.resize(size);
  return text;
}

std::string StringIn(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string()) return "";
  return field->get<std::string>().substr(0, kMaxString);
}

// Not negative; 0 for anything else.
int64_t CountIn(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_integer()) return 0;
  return std::max<int64_t>(field->get<int64_t>(), 0);
}

double SecondsIn(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number()) return 0;
  const double seconds = field->get<double>();
  return seconds > 0 ? seconds : 0;
}

bool IsTrue(const Json& object, const char* name) {
  const auto field = object.find(name);
  return field != object.end() && field->is_boolean() && field->get<bool>();
}

}  // namespace

void StallReader::Watch(int local_rank, std::string file) {
  File watched;
  watched.version = VersionOf(file);
  watched.path = std::move(file);
  files_[local_rank] = std::move(watched);
}

void StallReader::Forget(int local_rank) {
  const auto found = files_.find(local_rank);
  if (found == files_.end()) return;
  File& file = found->second;
  PollFile(local_rank, &file);
  for (auto& [pid, source] : file.sources) EndAllWaits(local_rank, &source);
  files_.erase(found);
}

std::vector<StallReader::Event> StallReader::Poll() {
  for (auto& [local_rank, file] : files_) PollFile(local_rank, &file);
  return std::exchange(events_, {});
}

std::optional<StallReader::Stall> StallReader::Longest(int local_rank) const {
  const auto found = files_.find(local_rank);
  if (found == files_.end()) return std::nullopt;
  const auto source = found->second.sources.find(found->second.writer);
  if (source == found->second.sources.end()) return std::nullopt;
  const Wait* longest = nullptr;
  for (const auto& [id, wait] : source->second.waits) {
    if (!wait.has_ended && (longest == nullptr || wait.began < longest->began)) longest = &wait;
  }
  if (longest == nullptr) return std::nullopt;
  Stall stall = longest->stall;
  stall.waited = clock_.Now() - longest->began;
  return stall;
}

void StallReader::PollFile(int local_rank, File* file) {
  if (const Version version = VersionOf(file->path); !(version == file->version)) {
    file->version = version;
    ParseFile(local_rank, ReadFile(file->path, kMaxFile), file);
  }
  const auto writer = file->sources.find(file->writer);
  if (writer != file->sources.end() && IsGone(writer->first, writer->second)) {
    EndAllWaits(local_rank, &writer->second);
  }
}

void StallReader::ParseFile(int local_rank, absl::string_view text, File* file) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const int64_t pid = json.is_object() ? CountIn(json, "pid") : 0;
  if (pid != file->writer) {
    // Another process has written the file, or it is malformed: the last writer's waits have ended.
    const auto writer = file->sources.find(file->writer);
    if (writer != file->sources.end()) EndAllWaits(local_rank, &writer->second);
    file->writer = pid;
  }
  if (pid == 0) return;
  if (file->sources.size() >= kMaxSources && file->sources.count(pid) == 0) file->sources.clear();
  Source& source = file->sources[pid];
  source.pid_namespace = StringIn(json, "pid_namespace");

  const absl::Time now = clock_.Now();
  // Both processes have the same wall clock, which may have been set since.
  const double age =
      absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - SecondsIn(json, "time");
  const absl::Time written = now - absl::Seconds(age > 0 && age < 60 ? age : 0);
  std::set<int64_t> listed;
  const auto waits = json.find("waits");
  if (waits != json.end() && waits->is_array()) {
    for (const Json& each : *waits) {
      if (!each.is_object() || listed.size() >= kMaxWaits) continue;
      const int64_t id = CountIn(each, "id");
      if (id == 0 || StringIn(each, "operation").empty() || !listed.insert(id).second) continue;
      Wait& wait = source.waits[id];
      wait.stall.operation = StringIn(each, "operation");
      wait.stall.missing = StringIn(each, "missing");
      wait.stall.text = StringIn(each, "text");
      wait.stall.waited = absl::Seconds(std::min(SecondsIn(each, "waited"), kMaxSeconds));
      wait.began = written - wait.stall.waited;
      const int64_t before = std::exchange(wait.warnings, CountIn(each, "warnings"));
      if (wait.warnings > before) Report(local_rank, Event::Kind::kWarning, wait);
      const bool has_ended = IsTrue(each, "ended");
      if (has_ended && !wait.has_ended) Report(local_rank, Event::Kind::kEnded, wait);
      wait.has_ended = has_ended;
    }
  }
  for (auto it = source.waits.begin(); it != source.waits.end();) {
    if (listed.count(it->first) > 0) {
      ++it;
      continue;
    }
    if (!it->second.has_ended) Report(local_rank, Event::Kind::kEnded, it->second);
    it = source.waits.erase(it);
  }
}

void StallReader::Report(int local_rank, Event::Kind kind, const Wait& wait) {
  if (wait.warnings == 0) return;  // Another rank reports it.
  if (kind == Event::Kind::kWarning) ++warnings_;
  events_.push_back({local_rank, kind, wait.stall});
}

void StallReader::EndAllWaits(int local_rank, Source* source) {
  for (auto& [id, wait] : source->waits) {
    if (std::exchange(wait.has_ended, true)) continue;
    wait.stall.waited = clock_.Now() - wait.began;
    Report(local_rank, Event::Kind::kEnded, wait);
  }
}

// Known only of a process in the launcher's pid namespace, not of one in a container.
bool StallReader::IsGone(int64_t pid, const Source& source) {
  static const std::string own = base::PidNamespace();
  if (own == "-" || source.pid_namespace != own || pid > std::numeric_limits<pid_t>::max()) {
    return false;
  }
  return kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
}

StallReader::Version StallReader::VersionOf(const std::string& path) {
  Version version;
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return version;
  version.device = info.st_dev;
  version.inode = info.st_ino;
  version.size = info.st_size;
  version.changed = absl::TimeFromTimespec(info.st_ctim);
  return version;
}

}  // namespace syncline::launch
