// Communicators of groups that are split off others.
#ifndef SYNCLINE_CORE_GROUP_CHILD_COMMUNICATORS_H_
#define SYNCLINE_CORE_GROUP_CHILD_COMMUNICATORS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/process_group.h"

namespace syncline::group {

// Thread-safe.
class ChildCommunicators {
 public:
  // Whether Make is of use: the same on all ranks, as long as the group lives.
  static bool CanMake(const ProcessGroup& parent);

  // All ranks of `parent` call it, those that get no new group too; waits for them. Null where the
  // rank gets no group, and where the parent has failed meanwhile: what some ranks have then is of
  // no use, and backends find out. Errors: an interrupt, and, which fails the parent, a timeout.
  static absl::StatusOr<std::shared_ptr<ChildCommunicator>> Make(ProcessGroup& parent,
                                                                 const SplitPlace& place,
                                                                 const Deadline& deadline);
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_CHILD_COMMUNICATORS_H_
