// A backend for unit tests: records what it is asked to do, and does what the test says.
#ifndef SYNCLINE_CORE_TESTING_FAKE_BACKEND_H_
#define SYNCLINE_CORE_TESTING_FAKE_BACKEND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/group/blocking_backend.h"
#include "syncline/backend.h"
#include "syncline/process_group.h"

namespace syncline {

// Registered as "fake". Every call is logged by name and then ends as `behaviour` says; calls that
// wait in there are woken by Abort through `aborted()`. Moves no bytes. Thread-safe.
class FakeBackend final : public group::BlockingBackend {
 public:
  using Behaviour = std::function<absl::Status(FakeBackend&, OpKind, const CallContext&)>;

  // The next group made with backend "fake" on this thread gets a backend with this behaviour.
  static void Next(Behaviour behaviour);
  // The backend of the last group made on this thread.
  static std::shared_ptr<FakeBackend> Last();

  FakeBackend(Behaviour behaviour, int rank)
      : group::BlockingBackend(rank), behaviour_(std::move(behaviour)) {}

  absl::string_view name() const override { return "fake"; }
  void Abort(const absl::Status& cause) override;

  // "all_reduce #0", in the order of the calls.
  std::vector<std::string> calls() const;
  // Waits, with a deadline, until `count` calls have begun; false if they have not.
  bool WaitForCalls(size_t count) const;
  // Waits until Abort, with a deadline; returns its cause.
  absl::Status WaitForAbort() const;

 private:
  // A receive from any source gets a message of rank 1.
  absl::StatusOr<int> RunBlocking(const CallContext& context) override;

  const Behaviour behaviour_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

// A group of `size` ranks over a FakeBackend with `behaviour`; it is rank 0 and alone.
std::shared_ptr<ProcessGroup> MakeFakeGroup(FakeBackend::Behaviour behaviour, int size = 1);

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_FAKE_BACKEND_H_
