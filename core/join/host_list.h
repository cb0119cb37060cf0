// Expands lists of hosts as Slurm writes them.
#ifndef SYNCLINE_CORE_JOIN_HOST_LIST_H_
#define SYNCLINE_CORE_JOIN_HOST_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::join {

// The hosts of "a[01-03,7],b2", in that order: a01, a02, a03, a7, b2. A name may have several
// brackets ("r[1-2]n[1-2]": the last one counts fastest). A pure function. ArgumentError if the
// list is malformed or names more than 100000 hosts.
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_HOST_LIST_H_
