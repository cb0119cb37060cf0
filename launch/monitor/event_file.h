// Writes the file of --event-log.
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
// across restarts. Lines that cannot be written are lost; that is reported once, and again only
// after a line could be written. A named pipe without room loses lines. Owns the descriptor. For
// the thread of a WriterThread.
class EventFile final : public WriterThread::Output {
 public:
  using Print = std::function<void(absl::string_view)>;

  // ArgumentError if the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<EventFile>> Open(const std::string& path, Print print);

  // Takes one line of `lines`.
  size_t Write(absl::string_view lines) override;

 private:
  EventFile(std::string path, Print print, base::UniqueFd fd);

  const std::string path_;
  const Print print_;
  const base::UniqueFd fd_;
  bool failing_ = false;  // The failure was reported.
  bool torn_ = false;     // The file ends within a line.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_EVENT_FILE_H_
