#include "syncline/info.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline {
namespace {

constexpr absl::string_view kDevices[] = {"cpu", "cuda"};
constexpr DeviceType kDeviceTypes[] = {DeviceType::kCpu, DeviceType::kCuda};

absl::StatusOr<OpKind> ParseOperation(absl::string_view name) {
  for (OpKind kind : AllOpKinds()) {
    if (Name(kind) == name) return kind;
  }
  return ArgumentError(absl::StrCat(
      "unknown operation '", name,
      "'; choose one of: ", absl::StrJoin(AllOpKinds(), ", ", [](std::string* out, OpKind kind) {
        absl::StrAppend(out, Name(kind));
      })));
}

absl::StatusOr<DeviceType> ParseDeviceType(absl::string_view name) {
  const auto* const found = std::find(std::begin(kDevices), std::end(kDevices), name);
  if (found != std::end(kDevices)) return kDeviceTypes[found - std::begin(kDevices)];
  return ArgumentError(
      absl::StrCat("unknown device '", name, "'; choose one of: ", absl::StrJoin(kDevices, ", ")));
}

std::vector<std::string> NamesOf(const EnumSet<DType>& dtypes) {
  std::vector<std::string> names;
  for (DType dtype : dtypes) names.emplace_back(Name(dtype));
  return names;
}

// Where they are, or through memory of the host.
bool IsServed(const Capabilities& capabilities, DeviceType device) {
  return capabilities.devices.count(device) != 0 || capabilities.staged_devices.count(device) != 0;
}

// What stands in the table for `served` of all types.
std::string Cell(const EnumSet<DType>& served) {
  if (served.size() == AllDTypes().size()) return "all types";
  std::vector<DType> missing;
  for (DType dtype : AllDTypes()) {
    if (served.count(dtype) == 0) missing.push_back(dtype);
  }
  if (missing.size() == 2 && std::all_of(missing.begin(), missing.end(), IsFloat8))
    return "all types but float8";
  return absl::StrJoin(NamesOf(served), " ");
}

std::string Cell(const Capabilities& capabilities, OpKind kind, DeviceType device) {
  if (!IsServed(capabilities, device) || capabilities.ops.count(kind) == 0) return "-";
  if (kind == OpKind::kBarrier) return "yes";
  return Cell(Reduces(kind) ? capabilities.reduce_dtypes : capabilities.move_dtypes);
}

}  // namespace

std::string Info::Version() { return SYNCLINE_VERSION; }

std::vector<std::string> Info::Backends() { return BackendRegistry::Names(); }

std::vector<std::string> Info::Stores() { return StoreRegistry::Names(); }

absl::Status Info::CheckBackend(const std::string& backend) {
  return BackendRegistry::Check(backend);
}

absl::StatusOr<std::string> Info::DescribeBackend(const std::string& backend) {
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(backend));
  return entry.describe == nullptr ? std::string() : entry.describe();
}

absl::StatusOr<std::vector<std::string>> Info::Operations(const std::string& backend,
                                                          const std::string& device) {
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(backend));
  SYNCLINE_ASSIGN_OR_RETURN(const DeviceType type, ParseDeviceType(device));
  std::vector<std::string> names;
  if (!IsServed(entry.capabilities, type)) return names;
  for (OpKind kind : entry.capabilities.ops) names.emplace_back(Name(kind));
  return names;
}

absl::StatusOr<std::vector<std::string>> Info::Dtypes(const std::string& backend,
                                                      const std::string& operation) {
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(backend));
  SYNCLINE_ASSIGN_OR_RETURN(const OpKind kind, ParseOperation(operation));
  if (entry.capabilities.ops.count(kind) == 0) return std::vector<std::string>();
  const Capabilities& served = entry.capabilities;
  return NamesOf(Reduces(kind) ? served.reduce_dtypes : served.move_dtypes);
}

std::string Info::CapabilityTable() {
  std::string header = "| operation |", rule = "|---|";
  std::vector<BackendRegistry::Entry> entries;
  for (const std::string& name : BackendRegistry::Names()) {
    entries.push_back(*BackendRegistry::Find(name));
    for (absl::string_view device : kDevices) {
      absl::StrAppend(&header, " ", name, ", ", device, " |");
      absl::StrAppend(&rule, "---|");
    }
  }
  std::string table = absl::StrCat(header, "\n", rule, "\n");
  for (OpKind kind : AllOpKinds()) {
    absl::StrAppend(&table, "| ", Name(kind), " |");
    for (const BackendRegistry::Entry& entry : entries) {
      for (DeviceType device : kDeviceTypes) {
        absl::StrAppend(&table, " ", Cell(entry.capabilities, kind, device), " |");
      }
    }
    absl::StrAppend(&table, "\n");
  }
  return table;
}

}  // namespace syncline
