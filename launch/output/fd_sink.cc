#include "launch/output/fd_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

std::string Lines(int64_t count) { return absl::StrCat(count, count == 1 ? " line" : " lines"); }

int64_t CountLines(absl::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

bool IsRegularFile(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

// The descriptor as the writer thread sees it. Only reader_gone() and Loss() are for other threads.
class FdSink::Descriptor final : public WriterThread::Output {
 public:
  Descriptor(base::UniqueFd fd, std::function<void()> reader_left)
      : fd_(std::move(fd)),
        reader_left_(std::move(reader_left)),
        // A write of so much to a pipe is atomic. A file takes any size in one piece.
        piece_(IsRegularFile(fd_.get()) ? SIZE_MAX : PIPE_BUF) {}

  size_t Write(absl::string_view bytes) override {
    if (reader_gone()) return bytes.size();
    if (lost_ > 0 || skips_ || !note_.empty()) return WriteAfterLoss(bytes);
    const absl::string_view piece = Piece(bytes);
    const size_t written = WriteSome(piece);
    if (written > 0 || error_ == 0) return written;
    Lose(piece);
    return piece.size();
  }

  bool reader_gone() const { return reader_gone_.load(std::memory_order_relaxed); }

  // The lines that were lost without a line about it, and why; empty if there are none.
  std::string Loss() const {
    const int64_t lost = lost_;
    return lost == 0 ? "" : absl::StrCat(Lines(lost), " (", std::strerror(reason_), ")");
  }

 private:
  // Whole lines, if there is one.
  absl::string_view Piece(absl::string_view bytes) const {
    if (bytes.size() <= piece_) return bytes;
    const size_t end = bytes.substr(0, piece_).rfind('\n');
    return bytes.substr(0, end == absl::string_view::npos ? piece_ : end + 1);
  }

  // Returns how many bytes were written. If none, error_ has the reason; 0 means try again.
  size_t WriteSome(absl::string_view bytes) {
    const ssize_t size = write(fd_.get(), bytes.data(), bytes.size());
    error_ = 0;
    if (size > 0) {
      at_line_start_ = bytes[static_cast<size_t>(size) - 1] == '\n';
      return static_cast<size_t>(size);
    }
    if (size < 0 && errno == EINTR) return 0;
    if (size < 0 && errno == EAGAIN) {  // Another process made the descriptor non-blocking.
      pollfd ready = {fd_.get(), POLLOUT, 0};
      poll(&ready, 1, -1);
      return 0;
    }
    error_ = size < 0 ? errno : EIO;
    return 0;
  }

  void Lose(absl::string_view piece) {
    if (error_ == EPIPE) {
      reader_gone_.store(true, std::memory_order_relaxed);
      if (reader_left_) reader_left_();
      return;
    }
    reason_ = error_;
    skips_ = piece.back() != '\n';
    lost_ += CountLines(piece) + (skips_ ? 1 : 0);
  }

  // Resumes at the start of a line, after a note about the missing ones.
  size_t WriteAfterLoss(absl::string_view bytes) {
    if (skips_) {
      const size_t end = bytes.find('\n');
      skips_ = end == absl::string_view::npos;
      return skips_ ? bytes.size() : end + 1;
    }
    const bool is_new = note_.empty();
    if (is_new) {
      note_ = absl::StrCat(at_line_start_ ? "" : "\n", "syncline-run: ", Lines(lost_),
                           lost_ == 1 ? " is" : " are", " missing here: ", std::strerror(reason_),
                           "\n");
    }
    const size_t written = WriteSome(note_);
    if (written > 0) {
      if (is_new) lost_ = 0;
      note_.erase(0, written);
      return 0;
    }
    if (is_new) note_.clear();  // The next one counts more.
    if (error_ == 0) return 0;
    const absl::string_view piece = Piece(bytes);
    Lose(piece);
    return piece.size();
  }

  const base::UniqueFd fd_;
  const std::function<void()> reader_left_;
  const size_t piece_;
  std::atomic<bool> reader_gone_{false};
  int error_ = 0;               // Of the last write.
  std::atomic<int> reason_{0};  // The error by which lines were lost last; set before lost_.
  std::atomic<int64_t> lost_{0};
  bool skips_ = false;  // The beginning of a line was lost: so is the rest.
  bool at_line_start_ = true;
  std::string note_;  // Of lost lines: what is still to be written of it.
};

FdSink::FdSink(int fd, std::unique_ptr<WriterThread> writer, std::shared_ptr<Descriptor> descriptor)
    : fd_(fd), writer_(std::move(writer)), descriptor_(std::move(descriptor)) {}

absl::StatusOr<std::unique_ptr<FdSink>> FdSink::Open(int fd, size_t max_pending,
                                                     std::function<void()> reader_left) {
  base::UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!own.valid()) {
    return BackendError(
        absl::StrCat("no descriptor for the launcher's output: ", std::strerror(errno),
                     ". Raise the limit of open files (ulimit -n)"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::unique_ptr<WriterThread> writer, WriterThread::Start(max_pending));
  return absl::WrapUnique(new FdSink(
      fd, std::move(writer), std::make_shared<Descriptor>(std::move(own), std::move(reader_left))));
}

void FdSink::Write(absl::string_view text) {
  if (text.empty() || reader_gone()) return;
  std::string with_note;
  if (dropped_ > 0) {
    with_note = absl::StrCat(at_line_start_ ? "" : "\n", "syncline-run: ... ", Lines(dropped_),
                             " dropped, reader too slow\n", text);
  }
  if (!writer_->Append(descriptor_, dropped_ > 0 ? with_note : text)) {
    dropped_ += std::max<int64_t>(CountLines(text), 1);
    return;
  }
  dropped_ = 0;
  at_line_start_ = text.back() == '\n';
}

bool FdSink::reader_gone() const { return descriptor_->reader_gone(); }

std::string FdSink::Missing() const {
  if (reader_gone()) return "";
  std::vector<std::string> parts;
  if (std::string loss = descriptor_->Loss(); !loss.empty()) parts.push_back(std::move(loss));
  if (const size_t pending = pending_size(); pending > 0) {
    parts.push_back(absl::StrCat(pending, " bytes (the reader does not take them)"));
  }
  if (dropped_ > 0) parts.push_back(absl::StrCat(Lines(dropped_), " (the reader was too slow)"));
  return absl::StrJoin(parts, ", ");
}

}  // namespace syncline::launch
