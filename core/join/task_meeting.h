// Where the tasks of a launcher's job meet that sets no MASTER_ADDR.
#ifndef SYNCLINE_CORE_JOIN_TASK_MEETING_H_
#define SYNCLINE_CORE_JOIN_TASK_MEETING_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/join/cluster.h"
#include "core/store/store.h"

namespace syncline {

struct TaskMeeting {
  std::string scheme;  // Of the store: "file" or "tcp".
  StoreConfig store;
  // tcp: the first task on the store's host serves it, whatever its rank. Otherwise rank 0 does.
  bool any_rank_serves = false;
  std::string from;  // The variables that say so, for people.
};

// All tasks of a job compute the same place, and other jobs another. On one host it is a file in a
// folder that only this user can enter. On several it is the first host that the launcher names, at
// a port and with a secret that follow from the job's name. MASTER_ADDR, MASTER_PORT and the secret
// of SYNCLINE_SECRET_FILE count where they are set. ArgumentError that says what to set if the
// launcher does not say enough.
absl::StatusOr<TaskMeeting> MeetingOf(const ClusterTask& task,
                                      const EnvironmentLookup& environment);

// The file through which the processes of `job` on this host meet: PARENT/syncline-UID/JOB-HASH.
// The hash tells apart hosts, and containers with networks of their own, that share the folder. It
// is /tmp, not TMPDIR or XDG_RUNTIME_DIR, which a job's processes may see differently. StoreError
// if PARENT/syncline-UID is not this user's alone.
absl::StatusOr<std::string> JobFile(absl::string_view job, absl::string_view parent = "/tmp");

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_TASK_MEETING_H_
