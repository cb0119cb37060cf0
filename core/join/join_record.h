// The record that a process writes into the store when it joins a world, and the ranks that follow
// from all records.
#ifndef SYNCLINE_CORE_JOIN_JOIN_RECORD_H_
#define SYNCLINE_CORE_JOIN_JOIN_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/host.h"
#include "syncline/store.h"

namespace syncline::join {

// A plain value: it owns its strings, and threads may read it together.
struct JoinRecord {
  int rank = -1;  // -1: the process takes any rank that is free.
  // kServer: the process hosts the store, which ends with it.
  StoreConfig::Role role = StoreConfig::Role::kClient;
  Peer peer;                  // The process itself.
  std::string backend = "-";  // Of the world, as SerializeBackendSpec; "-": none was said.

  // One line, as it stands in the store: "RANK server|client BACKEND PEER".
  std::string Serialize() const;
  // The inverse. StoreError if `text` is not a record: two jobs, or two versions, share the store.
  static absl::StatusOr<JoinRecord> Parse(absl::string_view text);
};

// The records of all these texts. StoreError for the first that is none.
absl::StatusOr<std::vector<JoinRecord>> ParseRecords(const std::vector<std::string>& texts);

// The rank of each process. `records` are in the order of slots, one for each rank of the world.
// A rank that a record gives is kept. Of those that are free, the process that hosts the store gets
// the lowest, and the others the next ones in the order of slots. A pure function, so all processes
// of a world find the same ranks. StoreError if a rank is given twice or is out of range: the
// reservations of JoinProtocol rule that out while one job uses the store.
absl::StatusOr<std::vector<int>> AssignRanks(const std::vector<JoinRecord>& records);

// All processes of a world must say the same backend: a MismatchError that names the first rank
// that does not say what rank 0 says. `ranks` are those of AssignRanks.
absl::Status CheckSameBackend(const std::vector<JoinRecord>& records,
                              const std::vector<int>& ranks);

// For messages: "0 (host a, pid 7), 1 (...)", or "any (host a, pid 7)" for a process without a
// rank. It lists a few processes and counts the others.
std::string Describe(const std::vector<JoinRecord>& records);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_JOIN_RECORD_H_
