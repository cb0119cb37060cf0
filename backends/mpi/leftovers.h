// What MPI may still use of groups that are gone.
#ifndef SYNCLINE_BACKENDS_MPI_LEFTOVERS_H_
#define SYNCLINE_BACKENDS_MPI_LEFTOVERS_H_

#include <functional>
#include <memory>
#include <vector>

#include "backends/mpi/mpi_api.h"

namespace syncline::mpi {

// Keeps `memory` for as long as MPI may write to it or read it: until all of `requests`, those of
// an operation that has failed, are complete. Asks MPI to cancel them. Thread-safe.
void KeepRequests(const MpiApi& api, std::vector<MpiHandle> requests,
                  std::vector<std::shared_ptr<void>> memory);

// When SweepLeftovers is called.
enum class Sweep { kNow, kBeforeFinalize };

// Calls `try_to_free` now, and then at each SweepLeftovers, until it returns true. Before MPI is
// finalised, what waits for other ranks is given up.
void FreeLater(std::function<bool(Sweep)> try_to_free);

// Frees what can be freed by now, and returns whether that is all. Call it when groups come and go,
// and before MPI_Finalize.
bool SweepLeftovers(Sweep sweep);

// MPI is being finalised: what is left is never looked at again, and never freed.
void AbandonLeftovers();

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_LEFTOVERS_H_
