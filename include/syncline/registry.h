// Implementations by name.
#ifndef SYNCLINE_REGISTRY_H_
#define SYNCLINE_REGISTRY_H_

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace syncline {

// Maps names to functions that make a `Base`. Filled before main() by the namespace-scope
// `Registration`s of the implementations that are linked in, then only read; so it needs no lock.
//
//   const StoreRegistry::Registration kHash("hash", &OpenHashStore);
//
// Each implementation's cc_library sets alwayslink, or the linker would drop its registration.
template <typename Base, typename... Args>
class Registry {
 public:
  using Factory = std::function<absl::StatusOr<std::shared_ptr<Base>>(Args...)>;

  struct Registration {
    Registration(absl::string_view name, Factory factory) {
      if (!Map().emplace(std::string(name), std::move(factory)).second) {
        std::fprintf(stderr, "syncline: registered twice: %s\n", std::string(name).c_str());
        std::abort();
      }
    }
  };

  // NOT_FOUND, listing what is linked in, if `name` is unknown.
  static absl::StatusOr<std::shared_ptr<Base>> Make(absl::string_view name, Args... args) {
    auto it = Map().find(std::string(name));
    if (it == Map().end()) {
      return absl::NotFoundError(
          absl::StrCat("'", name, "' is not known; choose one of: ", absl::StrJoin(Names(), ", ")));
    }
    return it->second(std::forward<Args>(args)...);
  }

  static bool Has(absl::string_view name) { return Map().count(std::string(name)) != 0; }

  // Sorted.
  static std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : Map()) names.push_back(entry.first);
    return names;
  }

 private:
  static std::map<std::string, Factory>& Map() {
    static auto* const map = new std::map<std::string, Factory>;
    return *map;
  }
};

}  // namespace syncline

#endif  // SYNCLINE_REGISTRY_H_
