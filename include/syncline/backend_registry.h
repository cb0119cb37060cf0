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
    // Whether what the backend needs of the machine is there, such as a library: an error that says
    // what is missing. Nothing for a backend that needs nothing.
    std::function<absl::Status()> check = nullptr;
    // The backend that serves tensors of CUDA devices in its place, where all ranks of a group can
    // use that one: they find out when the group is made. Empty: none.
    std::string cuda_backend = {};
    // What the machine lets the backend do, as far as this process can tell by itself, in a line:
    // see Info::DescribeBackend. Nothing for a backend that does the same everywhere.
    std::function<std::string()> describe = nullptr;
  };

  struct Registration {
    Registration(absl::string_view name, Entry entry);  // Ends the program if the name is taken.
  };

  // ArgumentError if the name is taken, or is not lower-case letters, digits and underscores.
  static absl::Status Add(absl::string_view name, Entry entry);

  // ArgumentError that lists what there is if `name` is unknown.
  static absl::StatusOr<Entry> Find(absl::string_view name);

  static bool Has(absl::string_view name) { return Find(name).ok(); }

  // OK if groups of backend `name` can be made on this machine, as far as this process can tell by
  // itself; the error of Find or of the entry's `check`, which is also logged at level info, if
  // not. It may load a library.
  static absl::Status Check(absl::string_view name);

  // Makes one rank's end of a group of backend `name`.
  static absl::StatusOr<std::shared_ptr<Backend>> Make(absl::string_view name,
                                                       const BackendConfig& config);

  // Sorted.
  static std::vector<std::string> Names();
};

}  // namespace syncline

#endif  // SYNCLINE_BACKEND_REGISTRY_H_
