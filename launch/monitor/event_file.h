// The file of --event-log.
#ifndef SYNCLINE_LAUNCH_MONITOR_EVENT_FILE_H_
#define SYNCLINE_LAUNCH_MONITOR_EVENT_FILE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "launch/output/writer_thread.h"

namespace syncline::launch {

// Each line goes to the file in one write, appended: several launchers may share a file, also
// across restarts. What cannot be written is lost, which is said once, and again only after
// something could be written in between. A named pipe without room loses lines. Not thread-safe:
// for the thread of a WriterThread.
class EventFile final : public WriterThread::Output {
 public:
  using Print = std::function<void(absl::string_view)>;

  // ArgumentError if the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<EventFile>> Open(const std::string& path, Print print);

  // Takes one line of `lines`.
  size_t Write(absl::string_view lines) override;

 private:
  EventFile(std::string path, Print print, UniqueFd fd);

  const std::string path_;
  const Print print_;
  const UniqueFd fd_;
  bool failing_ = false;  // It has been said.
  bool torn_ = false;     // The file ends within a line.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_EVENT_FILE_H_
