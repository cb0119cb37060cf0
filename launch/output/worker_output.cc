#include "launch/output/worker_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr size_t kReadSize = 64 << 10;
constexpr int kMaxDrainReads = 64;

}  // namespace

WorkerOutput::WorkerOutput(int fd, Console& console, Console::Stream* stream, UniqueFd log)
    : fd_(fd), console_(&console), stream_(stream), log_(std::move(log)) {}

void WorkerOutput::Read() {
  if (open_ && ReadOnce() == Progress::kEnd) Close();
}

void WorkerOutput::Drain() {
  Progress progress = Progress::kSome;
  for (int i = 0; open_ && progress == Progress::kSome && i < kMaxDrainReads; ++i) {
    progress = ReadOnce();
  }
  if (progress == Progress::kEnd) Close();
}

void WorkerOutput::Close() {
  if (!std::exchange(open_, false)) return;
  if (stream_ != nullptr) console_->End(std::exchange(stream_, nullptr));
  log_.reset();
}

WorkerOutput::Progress WorkerOutput::ReadOnce() {
  char buffer[kReadSize];
  const ssize_t size = read(fd_, buffer, sizeof(buffer));
  if (size == 0) return Progress::kEnd;
  if (size < 0) {
    return errno == EAGAIN || errno == EINTR ? Progress::kNothingNow : Progress::kEnd;
  }
  const absl::string_view bytes(buffer, static_cast<size_t>(size));
  tail_.Feed(bytes);
  if (stream_ != nullptr) console_->Feed(stream_, bytes);
  if (log_.valid()) Log(bytes);
  return Progress::kSome;
}

void WorkerOutput::Log(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(log_.get(), bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno != EINTR) {
      console_->Say(absl::StrCat("syncline-run: a worker's log cannot be written any more: ",
                                 std::strerror(errno)));
      log_.reset();
      return;
    }
  }
}

absl::StatusOr<UniqueFd> OpenLog(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.valid()) return log;
  return ArgumentError(absl::StrCat("the log '", path, "' cannot be opened: ", std::strerror(errno),
                                    ". Choose another --log-dir"));
}

}  // namespace syncline
