// Copies one output stream of one worker to the console and to files.
#ifndef SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_
#define SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/output/console.h"
#include "launch/output/line_filter.h"
#include "launch/output/log_file.h"
#include "launch/output/tail.h"

namespace syncline::launch {

// Reads as soon as there is data, so that a worker waits neither for a slow reader of the console
// nor for a disk. Owns its logs, not the descriptor. For the main thread; not thread-safe.
class WorkerOutput {
 public:
  // Where the output goes. Each may be missing.
  struct Targets {
    Console::Stream* stream = nullptr;  // Belongs to the console.
    std::unique_ptr<OutputLog> log;
    std::optional<LineFilter> filter;
  };

  // `fd`, the non-blocking reading end of a pipe, and `console` must outlive this object. Errors of
  // files become a line on the console.
  WorkerOutput(int fd, Console& console, Targets targets);

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
  void PrintError(const absl::Status& status);

  int fd_;
  Console* console_;
  Targets targets_;
  Tail tail_;
  bool open_ = true;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_WORKER_OUTPUT_H_
