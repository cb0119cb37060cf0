#include "core/tensor/memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace syncline::tensor {
namespace {

// Version 1 writes a number of this order for "no limit".
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

// One of the two versions of control groups.
struct Hierarchy {
  std::string folder;
  absl::string_view limit, usage, reclaimable;  // Two files, and an entry of memory.stat.
};

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The number behind `name` in lines of names and numbers; 0 if there is none.
uint64_t Find(absl::string_view lines, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    uint64_t number = 0;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty() && absl::SimpleAtoi(words[0], &number)) return number;
  }
  return 0;
}

// Lowers `memory` to what one group leaves.
void Restrict(MemoryBudget& memory, const Hierarchy& hierarchy, const std::string& group) {
  const std::string folder = absl::StrCat(hierarchy.folder, group, "/");
  uint64_t limit = 0, usage = 0;
  if (!absl::SimpleAtoi(Read(absl::StrCat(folder, hierarchy.limit)), &limit)) return;
  if (limit >= kNoLimit) return;
  if (!absl::SimpleAtoi(Read(absl::StrCat(folder, hierarchy.usage)), &usage)) usage = 0;
  // The kernel drops what it caches of files before it lets anybody go without.
  usage -= std::min(usage, Find(Read(folder + "memory.stat"), hierarchy.reclaimable));
  const size_t available = limit - std::min(limit, usage);
  if (available >= memory.available) return;
  memory.available = available;
  memory.owner = absl::StrCat("control group '", group.empty() ? "/" : group, "'");
}

void RestrictByGroups(MemoryBudget& memory, const std::string& root) {
  // Lines such as "4:cpu,memory:/a/b", and "0::/a/b" of version 2.
  for (absl::string_view line : absl::StrSplit(Read(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool is_second = parts[0] == "0" && parts[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (!is_second && !absl::c_linear_search(controllers, "memory")) continue;
    const Hierarchy hierarchy =
        is_second
            ? Hierarchy{root + "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "}
            : Hierarchy{root + "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                        "memory.usage_in_bytes", "total_inactive_file "};
    // In a container the group may be known by a path that is not seen there; what is seen then
    // begins with the container's own.
    std::string group = parts[2] == "/" || absl::StrContains(parts[2], "..") ? "" : parts[2];
    while (true) {
      Restrict(memory, hierarchy, group);
      if (group.empty()) break;
      group.resize(group.rfind('/'));
    }
  }
}

// As much as one likes where the kernel does not say.
MemoryBudget HostMemory(absl::string_view name, const std::string& root) {
  const uint64_t kibibytes = Find(Read(root + "/proc/meminfo"), name);
  return {kibibytes == 0 ? std::numeric_limits<size_t>::max() : kibibytes << 10, "this host"};
}

}  // namespace

MemoryBudget AvailableMemory(const std::string& root) {
  MemoryBudget memory = HostMemory("MemAvailable:", root);
  RestrictByGroups(memory, root);
  return memory;
}

MemoryBudget LargestMemory(const std::string& root) {
  MemoryBudget memory = HostMemory("MemTotal:", root);
  RestrictByGroups(memory, root);
  return memory;
}

}  // namespace syncline::tensor
