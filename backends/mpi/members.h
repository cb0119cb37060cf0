// What the ranks of a group of backend mpi tell each other in the store.
#ifndef SYNCLINE_BACKENDS_MPI_MEMBERS_H_
#define SYNCLINE_BACKENDS_MPI_MEMBERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/common/peer_table.h"

namespace syncline::mpi {

// What one rank says of itself: its payload in the PeerTable.
struct Member {
  bool checks = true;        // Whether it compares calls.
  bool hosts_store = false;  // Whether its process hosts the store.
  int world_rank = 0;        // In MPI_COMM_WORLD, of world_size processes.
  int world_size = 0;
  uint64_t nonce = 0;  // That of rank 0 counts.
  std::string family;  // Of its MPI library.

  std::string Serialize() const;  // "1 0 3 8 4711 Open MPI".
};

// What the ranks of a group know of each other.
struct Members {
  std::vector<int> world_ranks;  // In MPI_COMM_WORLD, by rank: all different, below world_size.
  int world_size = 0;
  uint64_t nonce = 0;
  int hosting_rank = -1;  // Its process hosts the store; -1: none does.
};

// Reads the payloads of all of `peers`. An error that names ranks if one is not understood, or if
// the ranks cannot be in one communicator.
absl::StatusOr<Members> ReadMembers(const backends::PeerTable& peers,
                                    absl::Span<const std::string> payloads);

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MEMBERS_H_
