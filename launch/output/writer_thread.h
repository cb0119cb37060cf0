// A thread that does writes which may block, with a bounded queue.
#ifndef SYNCLINE_LAUNCH_OUTPUT_WRITER_THREAD_H_
#define SYNCLINE_LAUNCH_OUTPUT_WRITER_THREAD_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::launch {

// Makes the calls that may block for any time: writes to a terminal, a pipe or a network disk.
// O_NONBLOCK does not help, because disks ignore it, and on an inherited descriptor it would hold
// for the user's shell too. Every wait for the thread has a timeout. Used by one thread.
class WriterThread {
 public:
  // A destination of bytes. Only the writer's thread calls it; it may block for any time.
  class Output {
   public:
    virtual ~Output() = default;
    // Returns how many of `bytes`, from their beginning, are written or given up. The next call
    // gets the others.
    virtual size_t Write(absl::string_view bytes) = 0;
  };

  static constexpr size_t kMaxPending = 64 << 20;

  // BackendError if the system has no thread for it.
  static absl::StatusOr<std::unique_ptr<WriterThread>> Start(size_t max_pending = kMaxPending);
  // Gives up what has not been written, and does not wait for the thread, which ends when the call
  // that it is in returns. Until then it keeps the outputs alive.
  ~WriterThread();

  // Queues a copy of the bytes, which are written in the order of these calls. Returns false, and
  // takes none of them, if even the reserve of a full queue is used up.
  bool Append(const std::shared_ptr<Output>& output, absl::string_view bytes);

  // Whether max_pending bytes wait. It stays so until half of them are written, so that a slow
  // reader sees stretches of text, not single lines, between gaps.
  bool full() const;
  size_t pending_size() const;  // In bytes.
  // Whether one call has been blocking for a tenth of a second.
  bool stalled() const;

  // Runs `operation` on the thread, ahead of the bytes that wait. Returns whether it has ended. It
  // has not if a call has been blocking for `timeout`, counted from the start of that call; then it
  // still runs later, so it must own all that it uses.
  bool Run(std::function<void()> operation, absl::Duration timeout);

  // Waits until all is written. Returns false if one call blocks for `timeout` meanwhile, at
  // `deadline` of a MonotonicClock, and when `cancelled` returns true.
  bool Flush(
      absl::Duration timeout, absl::Time deadline,
      const std::function<bool()>& cancelled = [] { return false; });

 private:
  struct Queue;

  explicit WriterThread(std::shared_ptr<Queue> queue);

  const std::shared_ptr<Queue> queue_;  // Shared with the thread.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_WRITER_THREAD_H_
