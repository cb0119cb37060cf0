#include "launch/output/queued_log.h"

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "syncline/status.h"

namespace syncline::launch {

// Only the writer thread uses it, once it is constructed.
class QueuedLog::Output final : public WriterThread::Output {
 public:
  explicit Output(ReportError report_error) : report_error_(std::move(report_error)) {}

  absl::Status Open(LogFile::Options options) {
    SYNCLINE_ASSIGN_OR_RETURN(file_, LogFile::Open(std::move(options)));
    return absl::OkStatus();
  }

  size_t Write(absl::string_view bytes) override {
    if (!file_.has_value()) return bytes.size();  // It could not be opened, which was reported.
    if (const absl::Status status = file_->Write(bytes); !status.ok()) report_error_(status);
    return bytes.size();
  }

  void Report(const absl::Status& status) const { report_error_(status); }

 private:
  const ReportError report_error_;
  std::optional<LogFile> file_;
};

QueuedLog::QueuedLog(WriterThread& writer, std::string path, std::shared_ptr<Output> output)
    : writer_(writer), path_(std::move(path)), output_(std::move(output)) {}

absl::StatusOr<std::unique_ptr<QueuedLog>> QueuedLog::Open(WriterThread& writer,
                                                           LogFile::Options options,
                                                           ReportError report_error,
                                                           absl::Duration timeout) {
  // An error is reported here if the caller no longer waits for it.
  struct Opening {
    absl::Mutex mutex;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
    bool is_awaited ABSL_GUARDED_BY(mutex) = true;
  };
  auto opening = std::make_shared<Opening>();
  auto output = std::make_shared<Output>(std::move(report_error));
  const std::string path = options.path;
  writer.Run(
      [opening, output, options = std::move(options)] {
        const absl::Status status = output->Open(options);
        absl::MutexLock lock(&opening->mutex);
        opening->status = status;
        if (!status.ok() && !opening->is_awaited) output->Report(status);
      },
      timeout);
  absl::MutexLock lock(&opening->mutex);
  opening->is_awaited = false;
  if (!opening->status.has_value()) {
    output->Report(BackendError(absl::StrCat(
        "the log '", path, "' cannot be opened yet: its disk does not answer. The job goes on; ",
        "what the workers write is kept until it does, as far as there is room")));
  } else if (!opening->status->ok()) {
    return *opening->status;
  }
  return absl::WrapUnique(new QueuedLog(writer, path, std::move(output)));
}

QueuedLog::~QueuedLog() {
  if (left_out_ > 0) Append("");
  // Closing a file may block too.
  writer_.Run([output = std::move(output_)] {}, absl::ZeroDuration());
}

absl::Status QueuedLog::Write(absl::string_view bytes) {
  const bool full = writer_.full();
  absl::Status status;
  if (full && !std::exchange(in_gap_, true)) {
    status = BackendError(absl::StrCat(
        "the log '", path_, "' is not written as fast as the workers write. The job goes on; ",
        "lines are left out of the file until it is, which says how many bytes are missing"));
    // A line that has begun is finished, from the reserve.
    const size_t end = at_line_start_ ? 0 : bytes.find('\n');
    if (!at_line_start_ && end != absl::string_view::npos) {
      Append(bytes.substr(0, end + 1));
      bytes.remove_prefix(end + 1);
    }
  }
  if (in_gap_) {
    // It ends where a line begins.
    const size_t end = full ? absl::string_view::npos : bytes.find('\n');
    const size_t size = end == absl::string_view::npos ? bytes.size() : end + 1;
    left_out_ += static_cast<int64_t>(size);
    bytes.remove_prefix(size);
    in_gap_ = end == absl::string_view::npos;
  }
  if (!bytes.empty()) Append(bytes);
  return status;
}

void QueuedLog::Append(absl::string_view bytes) {
  std::string with_note;
  if (left_out_ > 0) {
    with_note = absl::StrCat(at_line_start_ ? "" : "\n", LogFile::MissingNote(left_out_), bytes);
  }
  if (!writer_.Append(output_, left_out_ > 0 ? with_note : bytes)) {
    left_out_ += static_cast<int64_t>(bytes.size());
    return;
  }
  left_out_ = 0;
  at_line_start_ = bytes.empty() || bytes.back() == '\n';
}

}  // namespace syncline::launch
