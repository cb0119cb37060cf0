#include "launch/monitor/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline::launch {

EventFile::EventFile(std::string path, Print print, base::UniqueFd fd)
    : path_(std::move(path)), print_(std::move(print)), fd_(std::move(fd)) {}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Open(const std::string& path, Print print) {
  // O_NONBLOCK is for pipes; files ignore it.
  base::UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  if (!fd.valid()) {
    const std::string why = errno == ENXIO ? "nobody reads this pipe" : std::strerror(errno);
    return ArgumentError(absl::StrCat("--event-log: ", path, " cannot be opened: ", why));
  }
  return absl::WrapUnique(new EventFile(path, std::move(print), std::move(fd)));
}

size_t EventFile::Write(absl::string_view lines) {
  const size_t end = lines.find('\n');
  const absl::string_view line = lines.substr(0, end == absl::string_view::npos ? end : end + 1);
  // Gives up the line that was written in part, but not the next one.
  const std::string text = absl::StrCat(torn_ ? "\n" : "", line);
  ssize_t written;
  do {
    written = write(fd_.get(), text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = failing_ = false;
    return line.size();
  }
  const std::string why = written < 0 ? std::strerror(errno) : "no more room";
  if (written > 0) torn_ = true;
  if (!std::exchange(failing_, true)) {
    print_(absl::StrCat("events are lost, the job goes on: ", path_, " (--event-log): ", why));
  }
  return line.size();
}

}  // namespace syncline::launch
