#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "launch/options/options.h"

namespace syncline::launch {
namespace {

int CountVisibleGpus(int gpus) {
  const std::optional<std::string> visible = base::GetEnv("CUDA_VISIBLE_DEVICES");
  if (!visible.has_value()) return gpus;
  int count = 0;
  for (absl::string_view device : absl::StrSplit(*visible, ',', absl::SkipWhitespace())) {
    if (absl::StartsWith(device, "-")) break;  // As CUDA reads it: the list ends here.
    ++count;
  }
  return std::min(count, gpus);
}

}  // namespace

HostResources DetectHostResources() {
  HostResources host;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    host.cpus = CPU_COUNT(&cpus);
  } else {  // More CPUs than the set can hold.
    host.cpus = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  while (access(absl::StrCat("/dev/nvidia", host.gpus).c_str(), F_OK) == 0) ++host.gpus;
  host.gpus = CountVisibleGpus(host.gpus);
  return host;
}

}  // namespace syncline::launch
