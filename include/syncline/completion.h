// How a call that was handed to a backend ends.
#ifndef SYNCLINE_COMPLETION_H_
#define SYNCLINE_COMPLETION_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/deadline.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline {

// Either the call is done, or a handle tells when it will be. Backends whose calls block return the
// former; those that hand work to a device or to a thread of their own return the latter. Whoever
// holds a pending completion keeps the call's tensors until it is done.
class Completion {
 public:
  // A call in flight. Thread-safe. It ends by the deadline of the call's CallContext at the latest,
  // with a TimeoutError, and soon after Backend::Abort, with the cause given there: no holder has
  // to watch it. Its outcome is the rank that sent, for a receive, and 0 for every other operation.
  class Handle {
   public:
    virtual ~Handle() = default;

    // Waits until the call has ended and returns its outcome. A TimeoutError if it has not ended by
    // `deadline`, an InterruptedError if this thread is interrupted; the call then goes on.
    virtual absl::StatusOr<int> Wait(const Deadline& deadline) = 0;

    virtual bool IsDone() const = 0;

    // Calls `callback` once with the outcome: at once if the call has ended, else on the thread
    // that ends it, or on one that runs the callbacks of several calls. No lock is held. The
    // callback must not block.
    virtual void OnDone(std::function<void(const absl::StatusOr<int>&)> callback) = 0;

    // Whether the call is work of a device's streams, so that EnqueueWait can be called.
    virtual bool is_stream_ordered() const { return false; }

    // Makes work that is enqueued on `stream` from now on begin after the call's. Does not wait
    // for it: that the call has ended well is known once IsDone says so. The error of the call if
    // it has failed already.
    virtual absl::Status EnqueueWait(const Stream& stream) {
      static_cast<void>(stream);
      return UnsupportedError("the call is not work of a stream: wait for it");
    }
  };

  // Done; `source` is the rank that sent, for a receive.
  Completion(int source = 0) : source_(source) {}  // NOLINT: a backend returns the number.
  explicit Completion(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}

  // Null if the call is done.
  const std::shared_ptr<Handle>& handle() const { return handle_; }
  // For a call that is done.
  int source() const { return source_; }

 private:
  int source_ = 0;
  std::shared_ptr<Handle> handle_;
};

}  // namespace syncline

#endif  // SYNCLINE_COMPLETION_H_
