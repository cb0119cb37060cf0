// Writes to a file descriptor without waiting for its reader.
#ifndef SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
#define SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/output/console.h"

namespace syncline {

// Text that a slow reader (a full pipe, a stopped terminal) has not taken yet is kept, so that the
// launcher stays able to act. Whoever feeds the sink is to pause while congested(). If the reader
// goes away, text is dropped. Not thread-safe.
class FdSink final : public TextSink {
 public:
  explicit FdSink(int fd) : fd_(fd) {}  // Borrowed; must stay open. Its flags are left alone.

  void Write(absl::string_view text) override;
  void TryFlush();  // Writes what can be written now.
  // Waits for the reader, as long as it takes something once in `patience`.
  void Flush(absl::Duration patience);

  int fd() const { return fd_; }
  bool pending() const { return !pending_.empty(); }
  bool reader_gone() const { return reader_gone_; }
  bool congested() const { return pending_.size() > kCongestion; }

 private:
  static constexpr size_t kCongestion = 256 << 10;

  const int fd_;
  bool broken_ = false;       // For whatever reason.
  bool reader_gone_ = false;  // For this one.
  std::string pending_;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_OUTPUT_FD_SINK_H_
