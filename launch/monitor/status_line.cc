#include "launch/monitor/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/monitor/text.h"

namespace syncline::launch {
namespace {

constexpr absl::Duration kBetweenDrawings = absl::Milliseconds(200);
constexpr absl::Duration kBetweenRedrawings = absl::Milliseconds(50);
constexpr absl::Duration kTick = absl::Seconds(1);  // The time elapsed is in seconds.
constexpr int kDefaultColumns = 80;
constexpr int kMinColumns = 20;  // A narrower line is useless.

// VT100. Index goes down a line in the same column, and scrolls where there is none.
constexpr char kIndex[] = "\033D";
constexpr char kUp[] = "\033[A";
constexpr char kDown[] = "\033[B";
constexpr char kSaveCursor[] = "\0337";
constexpr char kRestoreCursor[] = "\0338";
constexpr char kEraseLine[] = "\033[2K";
constexpr char kEraseBelow[] = "\033[J";

std::string Nodes(const JobStatus& status) {
  if (status.phase == JobStatus::Phase::kJoining) {
    return status.max_nodes > 1 ? absl::StrCat("nodes ", status.nodes, "/", status.min_nodes) : "";
  }
  return status.nodes > 1 ? absl::StrCat("node ", status.group_rank, " of ", status.nodes) : "";
}

// "stalled 1/2: rank 3, 0:20 in all_reduce #4, missing 0, 2".
std::string Stall(const JobStatus& status) {
  const WorkerStatus* const worker = LongestStalled(status);
  if (worker == nullptr) return "";
  const StallStatus& stall = *worker->stall;
  // Its arguments would fill the line.
  const absl::string_view operation =
      absl::string_view(stall.operation).substr(0, stall.operation.find(" ("));
  return absl::StrCat("stalled ", WorkersStalled(status), "/", status.workers.size(), ": rank ",
                      worker->rank, ", ", FormatElapsed(stall.waited), " in ", operation,
                      stall.missing.empty() ? "" : absl::StrCat(", missing ", stall.missing));
}

std::string Ranks(const JobStatus& status) {
  if (status.workers.empty()) return "";
  const size_t here = status.workers.size();
  return absl::StrCat(
      "up ", WorkersUp(status), "/", here,
      status.world_size > static_cast<int>(here) ? absl::StrCat(" of ", status.world_size) : "");
}

}  // namespace

std::string FormatStatusLine(const JobStatus& status, int columns) {
  std::vector<std::string> parts = {
      absl::StrCat("[syncline] ", PhaseName(status.phase)),
      absl::StrCat("round ", status.round),
      Nodes(status),
      Ranks(status),
      absl::StrCat("restarts ", status.restarts, "/", status.max_restarts),
      FormatElapsed(status.elapsed),
      Stall(status),
      status.last_failure.empty() ? "" : absl::StrCat("last failure: ", status.last_failure)};
  parts.erase(std::remove(parts.begin(), parts.end(), ""), parts.end());
  return Printable(absl::StrJoin(parts, " | "), columns);
}

bool WantsStatusLine(LaunchOptions::StatusLine mode, const Environment& environment, int fd) {
  if (mode == LaunchOptions::StatusLine::kNever || !isatty(fd)) return false;
  if (mode == LaunchOptions::StatusLine::kAlways) return true;
  const auto value_of = [&environment](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  };
  const std::string term = value_of("TERM");
  return !term.empty() && term != "dumb" && value_of("NO_COLOR").empty() && value_of("CI").empty();
}

int TerminalColumns(int fd) {
  if (!isatty(fd)) return 0;
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

StatusLine::StatusLine(TextSink& terminal, Columns columns, const Clock& clock)
    : terminal_(terminal), columns_(std::move(columns)), clock_(clock) {}

void StatusLine::Show(const JobStatus& status) {
  status_ = status;
  started_ = clock_.Now() - status.elapsed;
  next_draw_ = last_draw_ + kBetweenDrawings;
  DrawIfDue();
}

void StatusLine::DrawIfDue() {
  const absl::Time now = clock_.Now();
  if (now < next_draw_) return;
  const int columns = columns_();
  if (columns < kMinColumns) {  // Perhaps later: a terminal can grow, or catch up.
    next_draw_ = now + kTick;
    return;
  }
  const std::string erasure = Erasure();
  terminal_.Write(absl::StrCat(erasure, Drawing(columns)));
}

void StatusLine::Finish() {
  if (drawn_ != Drawn::kNot) terminal_.Write(Erasure());
  next_draw_ = absl::InfiniteFuture();
}

void StatusLine::WriteAbove(TextSink& sink, absl::string_view text) {
  if (text.empty()) return;
  std::string all = absl::StrCat(Erasure(), text);
  within_line_ = text.back() != '\n';
  const absl::Time now = clock_.Now();
  const bool shown = next_draw_ != absl::InfiniteFuture();
  if (shown && now >= last_draw_ + kBetweenRedrawings) {
    if (const int columns = columns_(); columns >= kMinColumns) all += Drawing(columns);
  }
  // Draws an erased line again as soon as allowed.
  if (shown && drawn_ == Drawn::kNot) {
    next_draw_ = std::min(next_draw_, std::max(now, last_draw_ + kBetweenDrawings));
  }
  sink.Write(all);
}

std::string StatusLine::Erasure() {
  switch (std::exchange(drawn_, Drawn::kNot)) {
    case Drawn::kNot:
      return "";
    case Drawn::kHere:
      return absl::StrCat("\r", kEraseBelow);
    case Drawn::kBelow:
      return absl::StrCat(kSaveCursor, kDown, kEraseLine, kRestoreCursor);
  }
  return "";
}

std::string StatusLine::Drawing(int columns) {
  last_draw_ = clock_.Now();
  next_draw_ = last_draw_ + kTick;
  status_.elapsed = last_draw_ - started_;
  // The last column stays free: a terminal may wrap once it is written.
  const std::string line = FormatStatusLine(status_, columns - 1);
  if (!within_line_) {
    drawn_ = Drawn::kHere;
    return absl::StrCat(line, "\r");
  }
  drawn_ = Drawn::kBelow;
  return absl::StrCat(kIndex, kUp, kSaveCursor, kDown, "\r", kEraseLine, line, kRestoreCursor);
}

}  // namespace syncline::launch
