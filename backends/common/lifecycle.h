// Runs the operations of one rank, and decides how the group fails and how the rank leaves it.
#ifndef SYNCLINE_BACKENDS_COMMON_LIFECYCLE_H_
#define SYNCLINE_BACKENDS_COMMON_LIFECYCLE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/call_description.h"
#include "backends/common/connections.h"
#include "backends/common/failure_reporter.h"
#include "backends/common/stall_reporter.h"
#include "syncline/backend.h"
#include "syncline/store.h"

namespace syncline::backends {

// One rank's end of a group. It is usable until its first error, which is final: all later
// operations return that error at once.
//
// Thread-safe. It borrows the connections, which must outlive it, and shares the store.
class Lifecycle {
 public:
  // Whom an operation in which ranks do not meet waits for at a moment. Without ranks: all that it
  // needs.
  struct Awaited {
    std::vector<int> ranks;
    std::string call = {};  // The earlier one to which they have not come, if that holds it up.
  };
  using AwaitedNow = absl::FunctionRef<Awaited()>;

  // One operation, for the duration of Run.
  struct OperationScope {
    const CallContext& call;
    absl::Span<const int> awaited;  // The other ranks that the operation needs.
    absl::string_view name = {};    // For messages, instead of the call's; empty: the call's.
    // Of an operation that may end before all others have come to it. Asked on the thread in Run.
    const AwaitedNow* awaited_now = nullptr;

    Awaited WhoIsAwaited() const;
  };
  using Body = absl::FunctionRef<absl::Status()>;

  Lifecycle(Connections& connections, std::shared_ptr<Store> store)
      : connections_(connections),
        reporter_(store, connections.peers()),
        stalls_(store, connections.peers()) {}

  // Runs `body`, whose waits end with an error at the call's deadline, when this thread is
  // interrupted and when the group fails. If `body` returns an error, the group fails on all ranks.
  // The error that this returns names the ranks at fault, see FailureReporter::Diagnose; an
  // interrupt of this thread returns as it is.
  absl::Status Run(const OperationScope& scope, Body body);

  // Fails the group with `cause` if an operation is under way; otherwise this rank leaves it.
  void Abort(const absl::Status& cause);

  // Whether Abort has made this rank leave a group that had not failed. Then no operation is under
  // way, nor does one begin.
  bool is_leaving() {
    absl::MutexLock lock(&mutex_);
    return is_leaving_;
  }

  // Call it when a peer was lost. If this rank is in no operation, whose error would tell its peers
  // that it lives, this publishes what it did last. Does so once.
  void ReportIfIdle();

 private:
  // The end of an operation whose body has succeeded.
  absl::Status Finish(const OperationScope& scope);
  void Remove(const OperationScope& scope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the group, and returns the final error.
  absl::Status Fail(const OperationScope& scope, const absl::Status& cause, absl::Duration elapsed);
  // This rank's knowledge when it fails, as far as it needs no lock.
  Failure DescribeFailure(const OperationScope& scope, const absl::Status& cause,
                          absl::Duration elapsed) const;
  StallReporter::Wait DescribeWait(const OperationScope& scope);
  std::string DescribeIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Connections& connections_;
  const FailureReporter reporter_;
  const StallReporter stalls_;
  absl::Mutex
      leaving_mutex_;  // Serializes Connections::Leave, which must not be called under mutex_.
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // The final error; OK while the group is usable.
  bool is_leaving_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<const CallContext*> under_way_ ABSL_GUARDED_BY(mutex_);
  // The last that finished, without its sizes; and whether all others had come to it.
  std::optional<CallDescription> last_ ABSL_GUARDED_BY(mutex_);
  bool all_met_in_last_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time finished_ ABSL_GUARDED_BY(mutex_);
  std::string idle_ ABSL_GUARDED_BY(mutex_);          // What ReportIfIdle has published.
  bool diagnosing_ ABSL_GUARDED_BY(mutex_) = false;   // A failed operation looks for the cause.
  bool is_reported_ ABSL_GUARDED_BY(mutex_) = false;  // It has found it and published its report.
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_LIFECYCLE_H_
