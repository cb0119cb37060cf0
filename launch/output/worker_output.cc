#include "launch/output/worker_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::launch {
namespace {

constexpr size_t kReadSize = 64 << 10;
constexpr int kMaxDrainReads = 64;  // A pipe holds 1 MiB at most, unless someone writes on.

}  // namespace

WorkerOutput::WorkerOutput(int fd, Console& console, Targets targets)
    : fd_(fd), console_(&console), targets_(std::move(targets)) {}

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
  if (targets_.stream != nullptr) console_->End(std::exchange(targets_.stream, nullptr));
  if (targets_.filter.has_value()) PrintError(targets_.filter->End());
  targets_.filter.reset();
  targets_.log.reset();
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
  if (targets_.log != nullptr) PrintError(targets_.log->Write(bytes));
  if (targets_.filter.has_value()) PrintError(targets_.filter->Feed(bytes));
  if (targets_.stream != nullptr) console_->Feed(targets_.stream, bytes);
  return Progress::kSome;
}

// Once for all files: they usually are on one disk, which fills up for all of them.
void WorkerOutput::PrintError(const absl::Status& status) {
  if (status.ok()) return;
  console_->PrintOnce("worker_log", absl::StrCat("syncline-run: ", status.message()));
}

}  // namespace syncline::launch
