// A backend for unit tests whose calls end when the test says, as those of a device do.
#ifndef SYNCLINE_CORE_TESTING_DEFERRED_BACKEND_H_
#define SYNCLINE_CORE_TESTING_DEFERRED_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "syncline/backend.h"
#include "syncline/process_group.h"

namespace syncline {

// Registered as "deferred". Every call returns a pending Completion at once. It ends when the test
// calls Finish, at the call's deadline, or with Abort, as Completion::Handle promises. Moves no
// bytes. Thread-safe.
class DeferredBackend final : public Backend {
 public:
  // The backend of the last group made on this thread.
  static std::shared_ptr<DeferredBackend> Last();

  DeferredBackend();
  ~DeferredBackend() override;

  absl::string_view name() const override { return "deferred"; }
  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override;
  void Abort(const absl::Status& cause) override;

  // From now on calls end with Finish alone, as those of a transport which cannot cancel them.
  void OutliveAborts();

  // Ends the call with this index, from 0, on the calling thread. It may have ended already. The
  // outcome is the rank that sent, for a receive, else 0.
  void Finish(size_t index, const absl::StatusOr<int>& outcome);

  // "all_reduce #0", in the order of the calls.
  std::vector<std::string> calls() const;
  // Waits, with a deadline, until `count` calls have begun; false if they have not.
  bool WaitForCalls(size_t count) const;

 private:
  class Handle;

  // Ends calls at their deadlines.
  void WatchDeadlines();

  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<Handle>> handles_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  bool outlive_aborts_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

// A group of `size` ranks over a DeferredBackend; it is rank 0 and alone.
std::shared_ptr<ProcessGroup> MakeDeferredGroup(int size = 1);

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_DEFERRED_BACKEND_H_
