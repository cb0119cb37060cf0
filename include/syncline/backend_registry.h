// Backends by name, with what they serve.
#ifndef SYNCLINE_BACKEND_REGISTRY_H_
#define SYNCLINE_BACKEND_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "syncline/backend.h"

namespace syncline {

// What groups can be made of: "local", "gloo". Those that are linked in register themselves before
// main(), as
//
//   const BackendRegistry::Registration kGloo("gloo", {Capabilities::All(), &MakeGloo});
//
// with alwayslink in their cc_library; languages above may add more at run time. Thread-safe.
class BackendRegistry {
 public:
  using Factory =
      std::function<absl::StatusOr<std::shared_ptr<Backend>>(const BackendConfig& config)>;

  struct Entry {
    Capabilities capabilities;
    Factory make;
  };

  struct Registration {
    Registration(absl::string_view name, Entry entry);  // Ends the program if the name is taken.
  };

  // ArgumentError if the name is taken, or is not lower-case letters, digits and underscores.
  static absl::Status Add(absl::string_view name, Entry entry);

  // ArgumentError that lists what there is if `name` is unknown.
  static absl::StatusOr<Entry> Find(absl::string_view name);

  static bool Has(absl::string_view name) { return Find(name).ok(); }

  // Makes one rank's end of a group of backend `name`.
  static absl::StatusOr<std::shared_ptr<Backend>> Make(absl::string_view name,
                                                       const BackendConfig& config);

  // Sorted.
  static std::vector<std::string> Names();
};

}  // namespace syncline

#endif  // SYNCLINE_BACKEND_REGISTRY_H_
