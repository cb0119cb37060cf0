// What this build of Syncline has.
#ifndef SYNCLINE_INFO_H_
#define SYNCLINE_INFO_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

// As Python and Java show it: everything by name. Unknown names are ArgumentErrors that list the
// known ones.
class Info {
 public:
  static std::string Version();  // "0.1.0"

  static std::vector<std::string> Backends();
  static std::vector<std::string> Stores();

  // OK if groups of `backend` can be made on this machine; else an error that says why not: for
  // mpi, which libraries were looked for. It may load the backend's library, and initialises none.
  static absl::Status CheckBackend(const std::string& backend);

  // What this machine lets `backend` do, in a line: of shm, whether ranks can read each other's
  // memory, or why not. Empty if there is nothing to say.
  static absl::StatusOr<std::string> DescribeBackend(const std::string& backend);

  // The operations that `backend` serves on `device`, "cpu" or "cuda".
  static absl::StatusOr<std::vector<std::string>> Operations(const std::string& backend,
                                                             const std::string& device);

  // The element types on which `backend` serves `operation`; all types for one without elements.
  static absl::StatusOr<std::vector<std::string>> Dtypes(const std::string& backend,
                                                         const std::string& operation);

  // Operations by backends and devices, in Markdown.
  static std::string CapabilityTable();
};

}  // namespace syncline

#endif  // SYNCLINE_INFO_H_
