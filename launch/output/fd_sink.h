// Writes to a file descriptor without waiting for its reader.
#ifndef SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
#define SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/output/console.h"

namespace syncline {

// Text that a slow reader (a full pipe, a stopped terminal) has not taken yet is kept, so that the
// launcher stays able to act. Whoever feeds the sink is to leave text out while it is full(). If
// the reader goes away, text is dropped. Not thread-safe.
class FdSink final : public TextSink {
 public:
  static constexpr size_t kMaxPending = 64 << 20;

  // `fd` is borrowed, and must stay open. Its flags are left alone.
  explicit FdSink(int fd, size_t max_pending = kMaxPending) : fd_(fd), max_pending_(max_pending) {}

  void Write(absl::string_view text) override;
  // Once max_pending bytes wait, and until the reader has taken half of them: so that it sees
  // stretches of text, not single lines, between the gaps.
  bool full() const override { return full_; }
  void TryFlush();  // Writes what can be written now.
  // Waits for the reader, as long as it takes something once in `patience`.
  void Flush(absl::Duration patience);

  int fd() const { return fd_; }
  bool pending() const { return pending_size_ > 0; }
  size_t pending_size() const { return pending_size_; }
  bool reader_gone() const { return reader_gone_; }

 private:
  void Keep(absl::string_view text);
  void Taken(size_t size);
  void Break(int error);

  const int fd_;
  const size_t max_pending_;
  bool broken_ = false;       // For whatever reason.
  bool reader_gone_ = false;  // For this one.
  bool full_ = false;
  std::deque<std::string> pending_;  // None of them empty.
  size_t first_ = 0;                 // Where the first one begins: what precedes is written.
  size_t pending_size_ = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
