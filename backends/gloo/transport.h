// Gloo's transport with deadlines, and with an abort that reaches every wait.
//
// Gloo gives each wait inside an operation the whole timeout. When a connection breaks, Gloo wakes
// waits for messages that have not begun, but not those in the middle of a message. So all buffers
// of a group are made here, also those that Gloo's algorithms make for themselves.
#ifndef SYNCLINE_BACKENDS_GLOO_TRANSPORT_H_
#define SYNCLINE_BACKENDS_GLOO_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "syncline/deadline.h"

namespace syncline::gloo_backend {

// Runs `calls` of Gloo and turns an exception into a NetworkError; into a MismatchError where a
// message has another size than the receive posted for it. No other code catches them.
absl::Status CatchGloo(absl::FunctionRef<void()> calls);

// Throws what CatchGloo turns into `status`.
[[noreturn]] void ThrowThroughGloo(const absl::Status& status);

// `duration` for Gloo: at least a millisecond, since Gloo takes 0 for "no timeout"; at most a year.
std::chrono::milliseconds ToGlooTimeout(absl::Duration duration);

// The transport of a group of one rank, which has no connections.
std::shared_ptr<gloo::transport::Context> MakeSingleRankTransport();

// The buffers on which operations of a group wait, so that a failure can end all waits.
// Thread-safe. Borrows the buffers.
class BufferSet {
 public:
  // Adds a buffer; throws if the set has been aborted.
  void Add(gloo::transport::UnboundBuffer* buffer);
  void Remove(gloo::transport::UnboundBuffer* buffer);

  // Throws if the set has been aborted.
  void Check();

  // Makes every wait on a buffer of the set return now. From now on Add and Check throw what
  // CatchGloo turns into the first `cause`.
  void Abort(const absl::Status& cause);

 private:
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // OK until Abort.
  std::set<gloo::transport::UnboundBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

// A registered buffer that serves many operations, each with a deadline of its own. Waits end by an
// exception: at the deadline, when a connection ends, and when `set` is aborted.
//
// Not thread-safe. Borrows `data` and `set`, which must outlive it.
class PersistentBuffer {
 public:
  PersistentBuffer(gloo::transport::Context& transport, BufferSet& set, void* data, size_t size);
  ~PersistentBuffer();

  void Send(int to, uint64_t slot) { buffer_->send(to, slot); }
  void Receive(int from, uint64_t slot) { buffer_->recv(from, slot); }
  void AwaitSent(const Deadline& deadline);
  void AwaitReceived(const Deadline& deadline);

 private:
  const std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  BufferSet& set_;
};

// A Gloo context for one operation. It uses the connections of `transport`; its waits end by an
// exception at `deadline` and when `buffers`, which must outlive it, is aborted.
std::shared_ptr<gloo::Context> MakeOperationContext(
    std::shared_ptr<gloo::transport::Context> transport, BufferSet& buffers,
    const Deadline& deadline);

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_TRANSPORT_H_
