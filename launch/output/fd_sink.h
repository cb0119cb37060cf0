// Writes the console's text to a file descriptor without waiting for its reader.
#ifndef SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
#define SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/output/console.h"
#include "launch/output/writer_thread.h"

namespace syncline::launch {

// Queues text for a WriterThread of its own, so that a slow reader (a full pipe, a stopped
// terminal) blocks only that thread. The caller should drop text while the sink is full(); beyond a
// reserve the sink drops text itself and writes how many lines. Each line goes to a pipe in one
// write, so that it stays whole beside other writers of the pipe, unless it is longer than
// PIPE_BUF.
//
// Text that a full disk rejects is lost; the amount is written to the file once there is room
// again, and Missing() returns what could not be written even then. If the reader of a pipe goes
// away, all later text is dropped. Owns the thread and a duplicate of the descriptor. Used by one
// thread.
class FdSink final : public TextSink {
 public:
  // Works on a duplicate of `fd`. `reader_left`, if given, is called on another thread when
  // reader_gone() becomes true. BackendError without a thread or a descriptor for it.
  static absl::StatusOr<std::unique_ptr<FdSink>> Open(
      int fd, size_t max_pending = WriterThread::kMaxPending,
      std::function<void()> reader_left = nullptr);

  void Write(absl::string_view text) override;
  bool full() const override { return writer_->full(); }
  // As WriterThread::Flush.
  bool Flush(
      absl::Duration timeout, absl::Time deadline,
      const std::function<bool()>& cancelled = [] { return false; }) {
    return writer_->Flush(timeout, deadline, cancelled);
  }

  int fd() const { return fd_; }
  size_t pending_size() const { return writer_->pending_size(); }
  bool stalled() const { return writer_->stalled(); }
  bool reader_gone() const;

  // After the last Flush: how much text the descriptor lacks without a line about it, and why, such
  // as "2 lines (No space left on device)". Empty if there is none, or nobody reads it any more.
  std::string Missing() const;

 private:
  class Descriptor;

  FdSink(int fd, std::unique_ptr<WriterThread> writer, std::shared_ptr<Descriptor> descriptor);

  const int fd_;
  const std::unique_ptr<WriterThread> writer_;
  const std::shared_ptr<Descriptor> descriptor_;
  bool at_line_start_ = true;
  int64_t dropped_ = 0;  // Lines, since the last text that was taken.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
