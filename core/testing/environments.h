// Environments of processes for tests, among them those that cluster launchers really set.
#ifndef SYNCLINE_CORE_TESTING_ENVIRONMENTS_H_
#define SYNCLINE_CORE_TESTING_ENVIRONMENTS_H_

#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "gtest/gtest.h"

namespace syncline {

using Variables = std::map<std::string, std::string>;

// An environment with exactly these variables.
inline base::EnvironmentLookup LookUpIn(const Variables& variables) {
  return [variables](absl::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

// The variables in core/join/testdata/<name>.env, which a cluster has set for one of its tasks;
// those that say nothing of the cluster are left out. The test needs
// //core/join:cluster_environments as data, and fails without the file.
inline Variables Recorded(const std::string& name) {
  std::ifstream file(absl::StrCat("core/join/testdata/", name, ".env"));
  EXPECT_TRUE(file.good()) << name;
  Variables variables;
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

// `variables`, with those in `more` added or replaced.
inline Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_ENVIRONMENTS_H_
