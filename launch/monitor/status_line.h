// Draws a line at the bottom of a terminal that shows the job's status.
#ifndef SYNCLINE_LAUNCH_MONITOR_STATUS_LINE_H_
#define SYNCLINE_LAUNCH_MONITOR_STATUS_LINE_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/environment.h"
#include "launch/monitor/job_status.h"
#include "launch/options/options.h"
#include "launch/output/console.h"

namespace syncline::launch {

// The status in one line of at most `columns` columns, without escape sequences: control
// characters and bytes that are not UTF-8 become '?'. A character beyond ASCII counts as two
// columns, which is never too few.
std::string FormatStatusLine(const JobStatus& status, int columns);

// Whether there is to be a line on `fd`. kAuto: if that is a terminal that can do more than write
// one line after the other (TERM is neither unset nor "dumb"), and neither NO_COLOR nor CI is set,
// by which users ask for plain text. kAlways: on any terminal. What is no terminal never gets one.
bool WantsStatusLine(LaunchOptions::StatusLine mode, const Environment& environment, int fd);

// The columns of the terminal `fd`; 0 if it is none, 80 if it does not know.
int TerminalColumns(int fd);

// The line itself. It is drawn at most five times a second; around output of others
// (AboveStatusLine) it is erased and drawn again, but not more often than every 50 ms: a flood of
// output shows alone. Where the output stands within a line (a progress bar), the status is in the
// line below. Not thread-safe; never waits.
class StatusLine {
 public:
  // How many columns there are now; 0: nothing can be drawn now. Asked before each drawing, so
  // that SIGWINCH needs no handler.
  using Columns = std::function<int()>;

  // `terminal` and `clock` must outlive the line.
  StatusLine(TextSink& terminal, Columns columns, const Clock& clock);

  // Sets the status, and draws it unless the last drawing is too recent. The elapsed time advances
  // without further calls.
  void Show(const JobStatus& status);

  // In a loop around poll(): when DrawIfDue() has something to do; InfiniteFuture before Show().
  absl::Time next_draw() const { return next_draw_; }
  void DrawIfDue();

  // Erases the line for good, before the launcher's last messages.
  void Finish();

 private:
  friend class AboveStatusLine;

  void WriteAbove(TextSink& sink, absl::string_view text);
  std::string Erasure();             // Empty if nothing is drawn.
  std::string Drawing(int columns);  // Notes that it is drawn.

  TextSink& terminal_;
  const Columns columns_;
  const Clock& clock_;
  JobStatus status_;
  absl::Time started_;  // The launcher, by clock_.
  absl::Time next_draw_ = absl::InfiniteFuture();
  absl::Time last_draw_ = absl::InfinitePast();
  enum class Drawn { kNot, kHere, kBelow } drawn_ = Drawn::kNot;
  bool within_line_ = false;  // The cursor: text without an end of line came last.
};

// A sink for output that shows on the status line's terminal.
class AboveStatusLine final : public TextSink {
 public:
  // Both must outlive it.
  AboveStatusLine(StatusLine& line, TextSink& sink) : line_(line), sink_(sink) {}

  void Write(absl::string_view text) override { line_.WriteAbove(sink_, text); }
  bool full() const override { return sink_.full(); }

 private:
  StatusLine& line_;
  TextSink& sink_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_STATUS_LINE_H_
