#include "launch/output/log_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

base::UniqueFd OpenForAppending(const std::string& path) {
  return base::UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

// How many of `bytes` the file took; fewer than all with errno.
size_t WriteAll(int fd, absl::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t size = write(fd, bytes.data() + written, bytes.size() - written);
    if (size >= 0) {
      written += static_cast<size_t>(size);
    } else if (errno != EINTR) {
      break;
    }
  }
  return written;
}

}  // namespace

LogFile::LogFile(Options options, base::UniqueFd fd, int64_t size)
    : options_(std::move(options)), fd_(std::move(fd)), size_(size) {}

std::string LogFile::MissingNote(int64_t bytes) {
  return absl::StrCat("[syncline-run: ", bytes,
                      " bytes are missing here: the file could not be written]\n");
}

absl::StatusOr<LogFile> LogFile::Open(Options options) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(options.path).parent_path(), error);
  base::UniqueFd fd = OpenForAppending(options.path);
  struct stat info;
  if (fd.valid() && fstat(fd.get(), &info) == 0) {
    return LogFile(std::move(options), std::move(fd), info.st_size);
  }
  return ArgumentError(absl::StrCat("the log '", options.path, "' cannot be opened: ",
                                    std::strerror(errno), ". Choose another --log-dir"));
}

absl::Status LogFile::Write(absl::string_view bytes) {
  absl::Status status;
  while (!bytes.empty()) {
    const size_t size = RoomFor(bytes);
    if (size > 0) status.Update(Append(bytes.substr(0, size)));
    bytes.remove_prefix(size);
    if (!bytes.empty()) status.Update(Rotate());
  }
  return status;
}

// How many of the bytes belong in this file; the others belong in the next one.
size_t LogFile::RoomFor(absl::string_view bytes) const {
  const int64_t limit = options_.rotate_bytes;
  const auto all = static_cast<int64_t>(bytes.size());
  if (limit <= 0 || size_ + all <= limit) return bytes.size();
  const int64_t room = std::max<int64_t>(limit - size_, 0);
  const int64_t most = std::clamp<int64_t>(limit + kLineSlack - size_, 0, all);
  const size_t end = bytes.substr(0, static_cast<size_t>(room)).rfind('\n');
  if (end != absl::string_view::npos) return end + 1;
  if (at_line_start_ && size_ > 0) return 0;
  const size_t next = bytes.find('\n');  // Of a line that began in this file.
  if (next != absl::string_view::npos && static_cast<int64_t>(next) < most) return next + 1;
  return static_cast<size_t>(most);
}

absl::Status LogFile::Append(absl::string_view bytes) {
  if (lost_ > 0) {
    const std::string note = absl::StrCat(at_line_start_ ? "" : "\n", MissingNote(lost_));
    if (WriteAll(fd_.get(), note) < note.size()) {
      lost_ += static_cast<int64_t>(bytes.size());
      return absl::OkStatus();  // Reported before.
    }
    size_ += static_cast<int64_t>(note.size());
    lost_ = 0;
  }
  const size_t written = WriteAll(fd_.get(), bytes);
  const int error = errno;
  size_ += static_cast<int64_t>(written);
  if (written > 0) at_line_start_ = bytes[written - 1] == '\n';
  if (written == bytes.size()) return absl::OkStatus();
  lost_ += static_cast<int64_t>(bytes.size() - written);
  return BackendError(absl::StrCat("the log '", options_.path,
                                   "' cannot be written: ", std::strerror(error),
                                   ". The job goes on; what the file does "
                                   "not take is lost until there is room again"));
}

absl::Status LogFile::Rotate() {
  const std::string& path = options_.path;
  for (int i = options_.rotate_keep; i > 1; --i) {
    rename(absl::StrCat(path, ".", i - 1).c_str(), absl::StrCat(path, ".", i).c_str());
  }
  const int failed =
      options_.rotate_keep > 0 ? rename(path.c_str(), (path + ".1").c_str()) : unlink(path.c_str());
  base::UniqueFd next;
  if (failed == 0) next = OpenForAppending(path);
  if (!next.valid()) {
    options_.rotate_bytes = 0;
    return BackendError(absl::StrCat("the log '", path,
                                     "' cannot be rotated, and grows on: ", std::strerror(errno)));
  }
  fd_ = std::move(next);
  size_ = 0;
  return absl::OkStatus();
}

}  // namespace syncline::launch
