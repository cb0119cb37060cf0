// Reads init-method URLs: where a job's store is, and which rank this process has.
#ifndef SYNCLINE_CORE_JOIN_INIT_METHOD_H_
#define SYNCLINE_CORE_JOIN_INIT_METHOD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "syncline/store.h"

namespace syncline::join {

// The scheme of an init method whose store is found by multicast; see multicast_discovery.h.
inline constexpr absl::string_view kMulticastScheme = "multicast";

// The scheme of an init method whose store is found over MPI; see mpi_store.h.
inline constexpr absl::string_view kMpiScheme = "mpi";

// The contents of an init method. A plain value.
struct InitMethod {
  // Of the store: a name in StoreRegistry, kMulticastScheme or kMpiScheme.
  std::string scheme;
  StoreConfig store;  // With kMulticastScheme: host and port of the multicast group.
  // The prefix that keeps the rounds of one job apart in a shared store, "round/3"; may be empty.
  std::string prefix;
  std::string group_name;
  int rank = -1;  // -1: assigned when this process joins.
  int size = 1;   // -1 with kMpiScheme: as MPI says.
  // For tcp: the first process on the store's host serves it, whatever its rank.
  bool any_rank_serves = false;
  // For tcp where torchrun's own store has MASTER_PORT, which is store.port: what the key of the
  // job's store begins with (torchrun_store.h). Empty otherwise.
  std::string torchrun_job;
  std::string advice;  // For messages: what the user can set if there is no store.
  std::string from;    // For messages: what the environment says of it, and in which variables.
};

// Reads `url` (see WorldOptions) and the environment: for env:// the variables that launchers set
// or, where RANK, WORLD_SIZE or MASTER_ADDR is missing, the task that this process is (see
// cluster_task.h); for other URLs without world_size that task's rank and size. `rank` and `size`
// >= 0 take precedence; an ArgumentError quotes both where they cannot be combined with the task.
// Where MASTER_PORT is torchrun's own (TORCHELASTIC_USE_AGENT_STORE), the store is near it.
// Thread-safe while nobody changes the environment. ArgumentError that says what is missing,
// unknown or out of range.
absl::StatusOr<InitMethod> ParseInitMethod(absl::string_view url, int rank, int size);

// Whether a launcher, or a user in its stead, has set any variable that env:// reads. A task's own
// variables (cluster_task.h) do not count.
bool HasLauncher();

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_INIT_METHOD_H_
