// TensorQueue: a queue of tensors between the processes of one host.
#ifndef SYNCLINE_TENSOR_QUEUE_H_
#define SYNCLINE_TENSOR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "syncline/tensor.h"

namespace syncline {

struct TensorQueueOptions {
  // Bytes of messages that the queue holds at most; rounded up to a page. All of it is reserved
  // when the queue is made.
  size_t capacity = size_t{64} << 20;

  // Messages that it holds at most. 0: as many as fit, up to one for each KiB of the capacity.
  int64_t max_messages = 0;
};

// A bounded first-in, first-out queue with any number of producers and consumers, threads of any
// processes of one host and pid namespace. A message is some tensors on the CPU and a short byte
// string; its bytes are copied into memory that the processes share, and out of it.
//
//   // One process makes the queue, and passes a duplicate of its descriptor to others.
//   SYNCLINE_ASSIGN_OR_RETURN(auto queue, TensorQueue::Create({}));
//   SYNCLINE_RETURN_IF_ERROR(queue->Put({images, labels}, "batch 1", absl::Seconds(30)));
//   // Another one, with that descriptor:
//   SYNCLINE_ASSIGN_OR_RETURN(auto queue, TensorQueue::Open(descriptor));
//   SYNCLINE_ASSIGN_OR_RETURN(TensorQueue::Message message, queue->Get(absl::Seconds(30)));
//
// Thread-safe. A child of fork may go on to use its parent's object.
//
// A process may be killed at any time. Each message is delivered at most once, whole, and those of
// one producer's thread in order:
// - A message whose producer dies while it copies is never delivered. One Get returns a
//   NetworkError that names the producer's pid instead, and the queue goes on.
// - A message whose consumer dies while it copies is lost, and counted in Stats::lost_gets.
// - What a Put has returned for stays in the queue whatever becomes of its process.
// Waiting processes notice within a tenth of a second or so. A process that is stopped (SIGSTOP) in
// the middle of a copy is waited for.
class TensorQueue {
 public:
  struct Message {
    std::vector<Tensor> tensors;  // In memory of their own.
    std::string note;             // The byte string.
  };

  struct Stats {
    int64_t messages;   // In the queue, those that are being put included.
    size_t bytes;       // Of the capacity, taken.
    int64_t lost_puts;  // Messages whose producer died while it put them.
    int64_t lost_gets;  // Messages whose consumer died while it received them.
  };

  // A new queue. ArgumentError for impossible options; BackendError, with sizes, if there is not so
  // much memory.
  static absl::StatusOr<std::shared_ptr<TensorQueue>> Create(const TensorQueueOptions& options);

  // The queue of `descriptor`, which it owns from then on. BackendError if that is something else,
  // or a queue of another pid namespace, whose processes cannot be watched from here.
  static absl::StatusOr<std::shared_ptr<TensorQueue>> Open(int descriptor);

  // The queue of a handle that another process of this user, host and pid namespace has made, in
  // C++, Python or Java. ArgumentError for what is no handle; BackendError that names the pid of
  // that process if it has ended or has freed the queue, and as OpenShared does.
  static absl::StatusOr<std::shared_ptr<TensorQueue>> Open(absl::string_view handle);

  ~TensorQueue();
  TensorQueue(const TensorQueue&) = delete;
  TensorQueue& operator=(const TensorQueue&) = delete;

  // Of the shared memory. It stays the queue's: pass on a duplicate, or let a child inherit it.
  int descriptor() const;

  // A short text without spaces by which others open the queue, as long as this process runs and
  // has it: see docs/internals/shared_handle.md. BackendError if the kernel does not say what it
  // takes.
  absl::StatusOr<std::string> handle() const;

  size_t capacity() const;
  int64_t max_messages() const;

  // Copies a message into the queue; waits while there is no room for it. Puts that wait are served
  // before later ones, so that a large message is not overtaken for ever. ArgumentError, with both
  // sizes, for a message that is larger than the capacity, and for tensors that are strided;
  // UnsupportedError for tensors on a device; TimeoutError; BackendError once the queue is closed.
  absl::Status Put(absl::Span<const Tensor> tensors, absl::string_view note,
                   absl::Duration timeout);

  // The same without a wait. Returns whether there was room.
  absl::StatusOr<bool> TryPut(absl::Span<const Tensor> tensors, absl::string_view note);

  // Takes the oldest message; waits for it. TimeoutError; NetworkError for a message whose producer
  // has died; an error that IsEndOfQueue knows once the queue is closed and empty.
  absl::StatusOr<Message> Get(absl::Duration timeout);

  // The same without a wait: nothing if there is no message, or the oldest one is still being put.
  absl::StatusOr<absl::optional<Message>> TryGet();

  // Takes the oldest message into `tensors`, and returns its note. ArgumentError if its tensors do
  // not have the types and shapes of these; the message then stays in the queue.
  absl::StatusOr<std::string> GetInto(absl::Span<const Tensor> tensors, absl::Duration timeout);

  // Ends the queue, for all processes: puts fail from now on, those that wait included; consumers
  // get what is in the queue, then the end. More calls change nothing. Fails only if a process that
  // is stopped holds the queue's lock.
  absl::Status Close();
  bool is_closed() const;

  // A snapshot, which may be out of date at once.
  Stats stats() const;

 private:
  class Impl;
  explicit TensorQueue(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// Whether `status` says that a queue is closed and empty.
inline bool IsEndOfQueue(const absl::Status& status) { return absl::IsOutOfRange(status); }

}  // namespace syncline

#endif  // SYNCLINE_TENSOR_QUEUE_H_
