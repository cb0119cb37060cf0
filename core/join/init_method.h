// Init-method URLs: where a job's store is, and which rank this is.
#ifndef SYNCLINE_CORE_JOIN_INIT_METHOD_H_
#define SYNCLINE_CORE_JOIN_INIT_METHOD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/store/store.h"

namespace syncline {

// The scheme of an init method whose store is found by multicast; see multicast.h.
inline constexpr absl::string_view kMulticastScheme = "multicast";

// What an init method says.
struct InitMethod {
  std::string scheme;  // Of the store: a name in StoreRegistry, or kMulticastScheme.
  StoreConfig store;   // With kMulticastScheme: host and port of the multicast group.
  // What keeps the rounds of one job apart in a shared store, "round/3"; may be empty.
  std::string prefix;
  std::string group_name;
  int64_t rank = -1;  // -1: assigned when this process joins.
  int64_t size = 1;
  // tcp: who is first on the store's host serves it, whatever its rank.
  bool any_rank_serves = false;
  std::string from;  // What of it the environment says, and in which variables; for people.
};

// Reads `url` (see WorldOptions) and the environment: for env:// the variables that launchers set
// or, where RANK, WORLD_SIZE or MASTER_ADDR is missing, the task that this process is (see
// cluster.h); for other URLs without world_size that task's rank and size. `rank` and `size` >= 0
// take precedence; an ArgumentError quotes both where they cannot be combined with the task. Where
// MASTER_PORT is torchrun's own (TORCHELASTIC_USE_AGENT_STORE), the store is at the next port.
// ArgumentError that says what is missing, unknown or out of range.
absl::StatusOr<InitMethod> ParseInitMethod(absl::string_view url, int64_t rank, int64_t size);

// Whether the environment says anything that env:// would read, beside a task: a launcher has set
// it, or somebody who stands in for one.
bool HasLauncher();

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_INIT_METHOD_H_
