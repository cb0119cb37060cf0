#include "core/segments/segment_name.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/liveness.h"

namespace syncline::segments {
namespace {

constexpr char kPrefix[] = "syncline-";

std::string BootOf(const Peer& peer) { return peer.identity.substr(0, 8); }

// "pid:[4026531836]" has the number.
std::string DigitsOf(absl::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) digits += c;
  }
  return digits.empty() ? "0" : digits;
}

// "syncline", boot, namespace, pid, start time, and of a segment pid, client and number.
constexpr size_t kFields = 8;

bool ManagerHasEnded(const std::vector<absl::string_view>& fields, const Peer& self) {
  if (fields[1] != BootOf(self)) return true;
  if (fields[2] != DigitsOf(self.pid_namespace)) return false;
  Peer manager = self;
  return absl::SimpleAtoi(fields[3], &manager.pid) &&
         absl::SimpleAtoi(fields[4], &manager.started) &&
         base::LivenessOf(self, manager) == base::Liveness::kDead;
}

int Sweep(const std::string& folder, const std::function<bool(const std::string&)>& is_stale) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return 0;
  const absl::Cleanup close_it = [&] { closedir(entries); };
  int removed = 0;
  while (const dirent* const entry = readdir(entries)) {
    const std::string name = entry->d_name;
    struct stat status;
    if (!absl::StartsWith(name, kPrefix) || !is_stale(name)) continue;
    if (fstatat(dirfd(entries), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) continue;
    if (unlinkat(dirfd(entries), name.c_str(), 0) == 0) ++removed;
  }
  return removed;
}

}  // namespace

std::string ManagerName(const Peer& manager) {
  return absl::StrCat(kPrefix, BootOf(manager), "-", DigitsOf(manager.pid_namespace), "-",
                      manager.pid, "-", manager.started);
}

std::string SegmentName::ToString() const {
  return absl::StrCat(manager, "-", pid, "-", client, "-", number);
}

std::optional<SegmentName> SegmentName::Parse(absl::string_view name) {
  const std::vector<absl::string_view> fields = absl::StrSplit(name, '-');
  SegmentName result;
  if (fields.size() != kFields || !absl::StartsWith(name, kPrefix) ||
      absl::StrContains(name, '/') || !absl::SimpleAtoi(fields[5], &result.pid) ||
      !absl::SimpleAtoi(fields[6], &result.client) ||
      !absl::SimpleAtoi(fields[7], &result.number)) {
    return std::nullopt;
  }
  result.manager = absl::StrCat(kPrefix, fields[1], "-", fields[2], "-", fields[3], "-", fields[4]);
  return result;
}

int SweepStale(const Peer& self, const std::string& folder) {
  return Sweep(folder, [&](const std::string& name) {
    const std::vector<absl::string_view> fields = absl::StrSplit(name, '-');
    return fields.size() == kFields && ManagerHasEnded(fields, self);
  });
}

int SweepManager(absl::string_view manager, const std::string& folder) {
  const std::string prefix = absl::StrCat(manager, "-");
  return Sweep(folder, [&](const std::string& name) { return absl::StartsWith(name, prefix); });
}

}  // namespace syncline::segments
