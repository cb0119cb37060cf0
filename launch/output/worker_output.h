// One output stream of one worker, on its way to the console and to a file.
#ifndef SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_
#define SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/output/console.h"
#include "launch/output/tail.h"
#include "launch/unique_fd.h"

namespace syncline {

class WorkerOutput {
 public:
  // Borrows `fd`, the non-blocking reading end of a pipe, and `console`. `stream` is where to show
  // the output, or null: not at all. `log` is a file for it, or invalid.
  WorkerOutput(int fd, Console& console, Console::Stream* stream, UniqueFd log);

  WorkerOutput(WorkerOutput&&) = default;

  int fd() const { return fd_; }
  bool open() const { return open_; }
  std::vector<std::string> LastLines() const { return tail_.Lines(); }

  // Takes what is there, up to some KiB. Closes itself at the end of the stream.
  void Read();
  // Takes all that is there, within reason: a process that the worker left behind may be writing.
  void Drain();
  // Ends the stream on the console. No effect if it is closed.
  void Close();

 private:
  enum class Progress { kSome, kNothingNow, kEnd };
  Progress ReadOnce();
  void Log(absl::string_view bytes);

  int fd_;
  Console* console_;
  Console::Stream* stream_;
  UniqueFd log_;
  Tail tail_;
  bool open_ = true;
};

// Opens `path` for appending, after making its folder.
absl::StatusOr<UniqueFd> OpenLog(const std::string& path);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_
