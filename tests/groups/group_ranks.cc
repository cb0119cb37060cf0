#include "tests/groups/group_ranks.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline {

std::vector<absl::Status> RunGroup(const std::string& backend, int size,
                                   const std::function<absl::Status(ProcessGroup& group)>& body) {
  auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<ProcessGroup>> groups(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    ProcessGroup::Options options;
    options.backend = backend;
    options.store = store;
    options.rank = rank;
    options.size = size;
    options.timeout = kGroupTimeout;
    SYNCLINE_ASSIGN_OR_RETURN(groups[rank], ProcessGroup::Create(options));
    return body(*groups[rank]);
  });
}

absl::Status Expect(bool right, absl::string_view what, const ProcessGroup& group) {
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " on rank ", group.rank(), " of ", group.size()));
}

}  // namespace syncline
