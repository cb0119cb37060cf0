#include "launch/devices.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncline/status.h"

namespace syncline::launch {

absl::Status ShowOneDevice(int local_rank, Environment* environment) {
  Environment& env = *environment;
  env["LOCAL_RANK"] = "0";
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                           "ASCEND_RT_VISIBLE_DEVICES"}) {
    const auto found = env.find(name);
    if (found == env.end() || found->second.empty()) continue;  // Empty: none is to be seen.
    const std::vector<std::string> devices = absl::StrSplit(found->second, ',');
    if (static_cast<size_t>(local_rank) >= devices.size()) {
      return ArgumentError(absl::StrCat(name, "=", found->second, " names ", devices.size(),
                                        " device(s): none is left for local rank ", local_rank,
                                        ". Name one for each worker, or start fewer"));
    }
    found->second = std::string(absl::StripAsciiWhitespace(devices[local_rank]));
  }
  env.emplace("CUDA_VISIBLE_DEVICES", absl::StrCat(local_rank));
  return absl::OkStatus();
}

}  // namespace syncline::launch
