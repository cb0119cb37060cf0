// A log file of workers' output, with rotation.
#ifndef SYNCLINE_LAUNCH_OUTPUT_LOG_FILE_H_
#define SYNCLINE_LAUNCH_OUTPUT_LOG_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// Receives bytes for a file.
class OutputLog {
 public:
  virtual ~OutputLog() = default;

  // An error means that bytes were lost, or will be from now on; the log remains usable.
  virtual absl::Status Write(absl::string_view bytes) = 0;
  virtual const std::string& path() const = 0;

 protected:
  OutputLog() = default;
  OutputLog(OutputLog&&) = default;
  OutputLog& operator=(OutputLog&&) = default;
};

// Appends bytes unchanged. Owns the descriptor. Blocks on the disk. Not thread-safe.
//
// With rotation, a file that would grow beyond `rotate_bytes` becomes PATH.1, PATH.1 becomes PATH.2
// and so on, and a new one begins. Lines stay whole, for which a file may be kLineSlack larger;
// only longer lines are cut.
//
// Bytes that a full disk rejects are lost; their number is written to the file as soon as there is
// room again.
class LogFile final : public OutputLog {
 public:
  struct Options {
    std::string path;
    int64_t rotate_bytes = 0;  // 0: no rotation.
    int rotate_keep = 5;       // Older files that stay.
  };
  static constexpr int64_t kLineSlack = 64 << 10;

  // Creates the folder, and opens the file for appending. The error names the path and the reason.
  static absl::StatusOr<LogFile> Open(Options options);

  // The line that stands where bytes are missing.
  static std::string MissingNote(int64_t bytes);

  LogFile(LogFile&&) = default;
  LogFile& operator=(LogFile&&) = default;

  // An error means that bytes were lost, or that rotation has stopped.
  absl::Status Write(absl::string_view bytes) override;

  const std::string& path() const override { return options_.path; }

 private:
  LogFile(Options options, base::UniqueFd fd, int64_t size);

  absl::Status Append(absl::string_view bytes);
  absl::Status Rotate();
  size_t RoomFor(absl::string_view bytes) const;

  Options options_;
  base::UniqueFd fd_;
  int64_t size_;
  bool at_line_start_ = true;
  int64_t lost_ = 0;  // Bytes, since the last that could be written.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_LOG_FILE_H_
