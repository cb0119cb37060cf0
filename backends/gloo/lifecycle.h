// The life of one rank's end of a group: what is under way, how it fails, and how it ends.
#ifndef SYNCLINE_BACKENDS_GLOO_LIFECYCLE_H_
#define SYNCLINE_BACKENDS_GLOO_LIFECYCLE_H_

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
#include "backends/common/call.h"
#include "backends/common/failure_report.h"
#include "backends/common/stall_report.h"
#include "backends/gloo/mesh.h"
#include "core/group/backend.h"
#include "core/store/store.h"

namespace syncline {

// Thread-safe.
class Lifecycle {
 public:
  // One operation. Borrowed.
  struct Undertaking {
    const Call& call;
    absl::Span<const int> awaited;  // The other ranks that it needs.
    absl::string_view name = {};    // In place of the call's, for messages.
  };
  using Body = absl::FunctionRef<absl::Status(const std::shared_ptr<gloo::Context>&)>;

  // `mesh` must outlive it.
  Lifecycle(Mesh& mesh, std::shared_ptr<Store> store)
      : mesh_(mesh), reporter_(store, mesh.roster()), stalls_(store, mesh.roster()) {}

  // The way of every operation. If `body` throws or fails, the group is broken on all ranks; the
  // error says which ranks are to blame, and is that of all later calls.
  absl::Status Run(const Undertaking& undertaking, const Deadline& deadline, Body body);

  // Breaks the group if an operation is under way; else this rank leaves it.
  void Abort(const absl::Status& cause);

  // When a peer was lost: if this rank is in no operation, whose error would say so, its peers
  // learn what it did last.
  void TellIfIdle();

 private:
  // Once the body has succeeded.
  absl::Status Finish(const Undertaking& undertaking);
  void Forget(const Undertaking& undertaking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(const Undertaking& undertaking, const Deadline& deadline,
                    const absl::Status& cause, absl::Duration elapsed);
  // What to say of a wait in the undertaking that has become long.
  StallReporter::Wait Stalled(const Undertaking& undertaking);
  std::string Idleness() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mesh& mesh_;
  const FailureReporter reporter_;
  const StallReporter stalls_;
  absl::Mutex leaving_mutex_;  // Held while this rank leaves.
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // Not OK: unusable, because.
  std::vector<const Call*> under_way_ ABSL_GUARDED_BY(mutex_);
  std::optional<Call> last_ ABSL_GUARDED_BY(mutex_);  // That has finished; in short.
  absl::Time finished_ ABSL_GUARDED_BY(mutex_);
  std::string idle_ ABSL_GUARDED_BY(mutex_);         // What peers were told.
  bool explaining_ ABSL_GUARDED_BY(mutex_) = false;  // A failed call is finding the cause.
  bool told_ ABSL_GUARDED_BY(mutex_) = false;        // One has; the peers know.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_LIFECYCLE_H_
