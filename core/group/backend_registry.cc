#include "syncline/backend_registry.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline {
namespace {

struct Table {
  absl::Mutex mutex;
  std::map<std::string, BackendRegistry::Entry, std::less<>> entries ABSL_GUARDED_BY(mutex);
};

Table& TheTable() {
  static auto* const table = new Table;
  return *table;
}

bool IsName(absl::string_view name) {
  for (char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '_') return false;
  }
  return !name.empty();
}

}  // namespace

BackendRegistry::Registration::Registration(absl::string_view name, Entry entry) {
  const absl::Status added = Add(name, std::move(entry));
  if (added.ok()) return;
  std::fprintf(stderr, "syncline: %s\n", added.ToString().c_str());
  std::abort();
}

absl::Status BackendRegistry::Add(absl::string_view name, Entry entry) {
  if (!IsName(name)) {
    return ArgumentError(absl::StrCat("'", name,
                                      "' cannot be the name of a backend: use lower-case ",
                                      "letters, digits and underscores"));
  }
  Table& table = TheTable();
  absl::MutexLock lock(&table.mutex);
  if (!table.entries.emplace(std::string(name), std::move(entry)).second) {
    return ArgumentError(absl::StrCat("a backend '", name, "' is registered already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BackendRegistry::Entry> BackendRegistry::Find(absl::string_view name) {
  {
    Table& table = TheTable();
    absl::MutexLock lock(&table.mutex);
    auto it = table.entries.find(name);
    if (it != table.entries.end()) return it->second;
  }
  const std::vector<std::string> names = Names();
  if (names.empty()) {
    return ArgumentError(absl::StrCat(
        "unknown backend '", name, "': this program is linked with no backend. The Bazel ",
        "target //:syncline (@syncline//:syncline of another workspace) brings all of ",
        "them, and so does a library of the C++ package"));
  }
  return ArgumentError(
      absl::StrCat("unknown backend '", name, "'; choose one of: ", absl::StrJoin(names, ", ")));
}

absl::Status BackendRegistry::Check(absl::string_view name) {
  auto entry = Find(name);
  if (!entry.ok()) return entry.status();
  if (entry->check == nullptr) return absl::OkStatus();
  absl::Status status = entry->check();
  if (!status.ok()) {
    Log(LogLevel::kInfo, absl::StrCat("backend ", name, " is not available: ", status.message()));
  }
  return status;
}

absl::StatusOr<std::shared_ptr<Backend>> BackendRegistry::Make(absl::string_view name,
                                                               const BackendConfig& config) {
  auto entry = Find(name);
  if (!entry.ok()) return entry.status();
  return entry->make(config);
}

std::vector<std::string> BackendRegistry::Names() {
  Table& table = TheTable();
  absl::MutexLock lock(&table.mutex);
  std::vector<std::string> names;
  for (const auto& item : table.entries) names.push_back(item.first);
  return names;
}

}  // namespace syncline
