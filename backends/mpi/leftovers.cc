#include "backends/mpi/leftovers.h"

#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace syncline::mpi {
namespace {

struct Leftovers {
  absl::Mutex mutex;
  bool is_abandoned ABSL_GUARDED_BY(mutex) = false;
  std::list<std::function<bool(Sweep)>> attempts ABSL_GUARDED_BY(mutex);
};

// Never destroyed: MPI may use the memory until the process ends.
Leftovers& All() {
  static Leftovers* const all = new Leftovers;
  return *all;
}

}  // namespace

void KeepRequests(const MpiApi& api, std::vector<MpiHandle> requests,
                  std::vector<std::shared_ptr<void>> memory) {
  // Cancels in the first attempt, which is not made once MPI is finalised. A send may not be
  // cancelled.
  FreeLater([&api, requests = std::move(requests), memory = std::move(memory),
             is_cancelled = false](Sweep) mutable {
    if (!std::exchange(is_cancelled, true)) {
      for (MpiHandle& request : requests) api.cancel(&request);
    }
    for (size_t i = 0; i < requests.size();) {
      int done = 0;
      api.test(&requests[i], &done, nullptr);  // Whatever the error, `done` says if it is gone.
      if (done == 0) {
        ++i;
      } else {
        requests[i] = requests.back();
        requests.pop_back();
      }
    }
    return requests.empty();
  });
}

void FreeLater(std::function<bool(Sweep)> try_to_free) {
  Leftovers& all = All();
  {
    absl::MutexLock lock(&all.mutex);
    all.attempts.push_back(std::move(try_to_free));
  }
  SweepLeftovers(Sweep::kNow);
}

bool SweepLeftovers(Sweep sweep) {
  Leftovers& all = All();
  absl::MutexLock lock(&all.mutex);
  if (all.is_abandoned) return true;
  all.attempts.remove_if([sweep](std::function<bool(Sweep)>& attempt) { return attempt(sweep); });
  return all.attempts.empty();
}

void AbandonLeftovers() {
  Leftovers& all = All();
  absl::MutexLock lock(&all.mutex);
  all.is_abandoned = true;
}

}  // namespace syncline::mpi
