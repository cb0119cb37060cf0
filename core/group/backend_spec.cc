#include "core/group/backend_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

absl::StatusOr<DeviceType> ParseDevice(absl::string_view name) {
  if (name == "cpu") return DeviceType::kCpu;
  if (name == "cuda") return DeviceType::kCuda;
  return ArgumentError(absl::StrCat("unknown device '", name, "'; choose one of: cpu, cuda"));
}

// Where they are, or through memory of the host.
bool Serves(const BackendRegistry::Entry& entry, DeviceType device) {
  return entry.capabilities.devices.count(device) != 0 ||
         entry.capabilities.staged_devices.count(device) != 0;
}

absl::Status AddPair(absl::string_view pair, Backends& backends) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits(':', 1));
  SYNCLINE_ASSIGN_OR_RETURN(const DeviceType device, ParseDevice(parts.first));
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry,
                            BackendRegistry::Find(parts.second));
  if (!Serves(entry, device)) {
    return ArgumentError(
        absl::StrCat("backend ", parts.second, " does not serve device ", parts.first));
  }
  if (backends.emplace(device, parts.second).second) return absl::OkStatus();
  return ArgumentError(absl::StrCat("device ", parts.first, " is named twice"));
}

}  // namespace

absl::StatusOr<Backends> ParseBackendSpec(absl::string_view spec) {
  std::string text = absl::AsciiStrToLower(spec);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  Backends backends;
  if (text.find(':') == std::string::npos) {
    SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(text));
    for (DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      if (Serves(entry, device)) backends[device] = text;
    }
    return backends;
  }
  for (absl::string_view pair : absl::StrSplit(text, ',')) {
    const absl::Status added = AddPair(pair, backends);
    if (!added.ok()) {
      return Annotate(added, absl::StrCat("backend '", spec,
                                          "', where a name or pairs such as "
                                          "cpu:gloo,cuda:nccl are expected"));
    }
  }
  return backends;
}

std::string SerializeBackendSpec(const Backends& backends) {
  const bool has_all = backends.size() == 2;
  if (has_all && backends.begin()->second == backends.rbegin()->second) {
    return backends.begin()->second;
  }
  return absl::StrJoin(backends, ",", [](std::string* out, const Backends::value_type& item) {
    absl::StrAppend(out, item.first == DeviceType::kCpu ? "cpu:" : "cuda:", item.second);
  });
}

}  // namespace syncline::group
