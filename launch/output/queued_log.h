// A log file that a WriterThread writes.
#ifndef SYNCLINE_LAUNCH_OUTPUT_QUEUED_LOG_H_
#define SYNCLINE_LAUNCH_OUTPUT_QUEUED_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/output/log_file.h"
#include "launch/output/writer_thread.h"

namespace syncline::launch {

// A LogFile that blocks neither the launcher nor a worker when its disk is slow. While the writer
// is full, whole lines are dropped, and a line in their place has the number of bytes. Not
// thread-safe.
class QueuedLog final : public OutputLog {
 public:
  // Receives later errors, on the writer's thread.
  using ReportError = std::function<void(const absl::Status&)>;

  // An error if the file cannot be opened. A disk that does not answer within `timeout` is only
  // reported, and the file is opened once it does. `writer` must outlive the log.
  static absl::StatusOr<std::unique_ptr<QueuedLog>> Open(WriterThread& writer,
                                                         LogFile::Options options,
                                                         ReportError report_error,
                                                         absl::Duration timeout);
  ~QueuedLog() override;

  // An error means that from here on bytes are dropped.
  absl::Status Write(absl::string_view bytes) override;
  const std::string& path() const override { return path_; }

 private:
  class Output;

  QueuedLog(WriterThread& writer, std::string path, std::shared_ptr<Output> output);

  void Append(absl::string_view bytes);

  WriterThread& writer_;
  const std::string path_;
  std::shared_ptr<Output> output_;
  bool at_line_start_ = true;
  bool in_gap_ = false;
  int64_t left_out_ = 0;  // Bytes that the file does not know of yet.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_QUEUED_LOG_H_
