// Finds the store of the tasks of a Slurm or MPI job that has no MASTER_ADDR.
#ifndef SYNCLINE_CORE_JOIN_CLUSTER_STORE_H_
#define SYNCLINE_CORE_JOIN_CLUSTER_STORE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/join/cluster_task.h"
#include "syncline/store.h"

namespace syncline::join {

struct ClusterStore {
  std::string scheme;  // Of the store: "file", "tcp", or kMpiScheme if only MPI can tell.
  StoreConfig store;
  // For tcp: the first task on the store's host serves it, whatever its rank. Otherwise rank 0
  // does.
  bool any_rank_serves = false;
  std::string from;    // For messages: the variables that say so.
  std::string advice;  // For messages, with kMpiScheme: what to set instead.
};

// The store of `task`'s job. All tasks of a job compute the same one, and other jobs another,
// without a message. On one host it is a file in a folder that only this user can enter. On several
// it is at the first host that the launcher names, at a port and with a secret that follow from the
// job's name. If the launcher does not say enough for that, the tasks must ask MPI. MASTER_ADDR,
// MASTER_PORT and the secret of SYNCLINE_SECRET_FILE count where they are set. Thread-safe.
// ArgumentError if MASTER_ADDR is set and the port is not known or out of range; StoreError as
// JobFile.
absl::StatusOr<ClusterStore> StoreOfTask(const ClusterTask& task,
                                         const base::EnvironmentLookup& environment);

// The path of the store's file for the processes of `job` on this host:
// PARENT/syncline-UID/JOB-HASH. The hash tells apart hosts, and containers with networks of their
// own, that share the folder. It is /tmp, not TMPDIR or XDG_RUNTIME_DIR, which a job's processes
// may see differently. StoreError if PARENT/syncline-UID is not this user's alone.
absl::StatusOr<std::string> JobFile(absl::string_view job, absl::string_view parent = "/tmp");

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_CLUSTER_STORE_H_
