// The status line, as a terminal shows it.
#include "launch/monitor/status_line.h"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/monitor/text.h"
#include "launch/output/console.h"
#include "launch/output/fd_sink.h"

namespace syncline::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// As much of a VT100 as the line uses. Unknown sequences fail the test.
class Screen {
 public:
  Screen(size_t rows, size_t columns) : columns_(columns), lines_(rows) {}

  void Show(absl::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char byte = bytes[i];
      if (byte == '\033') {
        i += Escape(bytes.substr(i + 1));
      } else if (byte == '\r') {
        column_ = 0;
      } else if (byte == '\n') {
        LineFeed();
        column_ = 0;  // The terminal's driver adds the return.
      } else {
        Put(byte);
      }
    }
  }

  // Without empty lines below.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines = lines_;
    while (!lines.empty() && lines.back().find_first_not_of(' ') == std::string::npos) {
      lines.pop_back();
    }
    return lines;
  }
  size_t row() const { return row_; }
  size_t column() const { return column_; }

 private:
  // Returns how many bytes behind the escape are its.
  size_t Escape(absl::string_view rest) {
    if (absl::StartsWith(rest, "D")) return LineFeed(), 1;
    if (absl::StartsWith(rest, "7")) return saved_row_ = row_, saved_column_ = column_, 1;
    if (absl::StartsWith(rest, "8")) return row_ = saved_row_, column_ = saved_column_, 1;
    if (absl::StartsWith(rest, "[A")) return row_ -= row_ > 0 ? 1 : 0, 2;
    if (absl::StartsWith(rest, "[B")) return row_ += row_ + 1 < lines_.size() ? 1 : 0, 2;
    if (absl::StartsWith(rest, "[2K")) return lines_[row_].clear(), 3;
    if (absl::StartsWith(rest, "[J")) {
      lines_[row_].resize(std::min(lines_[row_].size(), column_));
      std::fill(lines_.begin() + row_ + 1, lines_.end(), "");
      return 2;
    }
    ADD_FAILURE() << "an unknown sequence: " << rest.substr(0, 4);
    return 0;
  }

  void LineFeed() {
    if (++row_ < lines_.size()) return;
    --row_;
    lines_.erase(lines_.begin());
    lines_.emplace_back();
  }

  void Put(char byte) {
    if (column_ == columns_) {
      LineFeed();
      column_ = 0;
    }
    std::string& line = lines_[row_];
    line.resize(std::max(line.size(), column_ + 1), ' ');
    line[column_++] = byte;
  }

  const size_t columns_;
  std::vector<std::string> lines_;
  size_t row_ = 0;
  size_t column_ = 0;
  size_t saved_row_ = 0;
  size_t saved_column_ = 0;
};

class ScreenSink final : public TextSink {
 public:
  explicit ScreenSink(Screen& screen) : screen_(screen) {}
  void Write(absl::string_view text) override {
    ++writes;
    screen_.Show(text);
  }
  int writes = 0;

 private:
  Screen& screen_;
};

JobStatus Running() {
  JobStatus status;
  status.phase = JobStatus::Phase::kRunning;
  status.round = 3;
  status.restarts = 1;
  status.max_restarts = 5;
  status.group_rank = 1;
  status.nodes = 2;
  status.world_size = 4;
  status.workers.resize(2);
  status.elapsed = absl::Minutes(12) + absl::Seconds(5);
  return status;
}

constexpr char kRunning[] =
    "[syncline] running | round 3 | node 1 of 2 | up 2/2 of 4 | restarts 1/5 | 12:05";

class StatusLineTest : public testing::Test {
 protected:
  FakeClock clock_;
  int columns_ = 100;
  Screen screen_{5, 100};
  ScreenSink terminal_{screen_};
  StatusLine line_{terminal_, [this] { return columns_; }, clock_};
  AboveStatusLine output_{line_, terminal_};
};

TEST_F(StatusLineTest, SaysRoundRanksRestartsTimeAndTheLastFailure) {
  JobStatus status = Running();
  EXPECT_EQ(FormatStatusLine(status, 100), kRunning);
  status.workers[1].state = WorkerStatus::State::kFailed;
  status.last_failure = "rank 3 (host b): SIGKILL";
  EXPECT_EQ(FormatStatusLine(status, 200),
            "[syncline] running | round 3 | node 1 of 2 | up 1/2 of 4 | restarts 1/5 | 12:05 | "
            "last failure: rank 3 (host b): SIGKILL");
  status = JobStatus();
  status.min_nodes = 2;
  status.max_nodes = 3;
  status.nodes = 1;
  EXPECT_EQ(FormatStatusLine(status, 100),
            "[syncline] joining | round 0 | nodes 1/2 | restarts 0/0 | 0:00");
}

TEST_F(StatusLineTest, SaysWhichRankHasWaitedLongestForWhom) {
  JobStatus status = Running();
  status.workers[0].stall = StallStatus{"barrier #9", "", absl::Seconds(12)};
  EXPECT_EQ(FormatStatusLine(status, 200),
            absl::StrCat(kRunning, " | stalled 1/2: rank 0, 0:12 in barrier #9"));
  status.workers[1].rank = 3;
  status.workers[1].stall =
      StallStatus{"all_reduce #4 (float32, 3 elements, sum)", "0, 5-9", absl::Seconds(20)};
  EXPECT_EQ(
      FormatStatusLine(status, 200),
      absl::StrCat(kRunning, " | stalled 2/2: rank 3, 0:20 in all_reduce #4, missing 0, 5-9"));
}

TEST_F(StatusLineTest, OutputAppearsAboveTheLineAndLeavesNoneOfItBehind) {
  line_.Show(Running());
  EXPECT_THAT(screen_.lines(), ElementsAre(kRunning));
  for (const char* text : {"one\n", "two\nthree\n", "four\n"}) {
    clock_.Advance(absl::Milliseconds(60));
    output_.Write(text);
  }
  EXPECT_THAT(screen_.lines(), ElementsAre("one", "two", "three", "four", kRunning));
  clock_.Advance(absl::Milliseconds(60));
  output_.Write("five\nsix\n");  // The screen scrolls.
  EXPECT_THAT(screen_.lines(), ElementsAre("three", "four", "five", "six", kRunning));
  line_.Finish();
  EXPECT_THAT(screen_.lines(), ElementsAre("three", "four", "five", "six"));
  EXPECT_EQ(screen_.column(), 0u);
  EXPECT_EQ(line_.next_draw(), absl::InfiniteFuture());
}

TEST_F(StatusLineTest, OutputThatHasNotEndedItsLineGoesOnWhereItWas) {
  line_.Show(Running());
  for (int percent : {10, 50, 90}) {
    clock_.Advance(absl::Milliseconds(60));
    output_.Write(absl::StrCat("\rbar ", percent, "%"));
    EXPECT_THAT(screen_.lines(), ElementsAre(absl::StrCat("bar ", percent, "%"), kRunning));
    EXPECT_EQ(screen_.row(), 0u);
    EXPECT_EQ(screen_.column(), 7u);
  }
  output_.Write(" done\nnext\n");
  EXPECT_THAT(screen_.lines(), ElementsAre("bar 90% done", "next"));
  clock_.Advance(absl::Milliseconds(200));
  line_.DrawIfDue();
  EXPECT_THAT(screen_.lines(), ElementsAre("bar 90% done", "next", kRunning));
}

TEST_F(StatusLineTest, AtTheBottomOfTheScreenAnUnfinishedLineMovesUpForTheStatus) {
  output_.Write("1\n2\n3\n4\nbar");
  EXPECT_EQ(screen_.row(), 4u);
  line_.Show(Running());
  EXPECT_THAT(screen_.lines(), ElementsAre("2", "3", "4", "bar", kRunning));
  clock_.Advance(absl::Milliseconds(60));
  output_.Write("!\n5\n");
  EXPECT_THAT(screen_.lines(), ElementsAre("3", "4", "bar!", "5", kRunning));
}

TEST_F(StatusLineTest, ChangesAreDrawnAtMostFiveTimesASecond) {
  line_.Show(Running());
  const int before = terminal_.writes;
  JobStatus status = Running();
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(absl::Milliseconds(10));
    status.round = i;
    line_.Show(status);
    if (clock_.Now() >= line_.next_draw()) line_.DrawIfDue();
  }
  EXPECT_EQ(terminal_.writes - before, 5);
  EXPECT_THAT(screen_.lines()[0], HasSubstr("round 99"));
}

TEST_F(StatusLineTest, AFloodOfOutputShowsAloneUntilItEnds) {
  line_.Show(Running());
  for (int i = 0; i < 20; ++i) output_.Write("text\n");
  EXPECT_THAT(screen_.lines(), ElementsAre("text", "text", "text", "text"));
  clock_.Advance(line_.next_draw() - clock_.Now());
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch() + absl::Milliseconds(200));
  line_.DrawIfDue();
  EXPECT_THAT(screen_.lines(), ElementsAre("text", "text", "text", "text", kRunning));
}

TEST_F(StatusLineTest, TheTimeGoesOnByItself) {
  line_.Show(Running());
  EXPECT_EQ(line_.next_draw(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  line_.DrawIfDue();
  EXPECT_THAT(screen_.lines()[0], HasSubstr("12:06"));
}

TEST_F(StatusLineTest, NothingIsDrawnWhileThereIsNoRoom) {
  columns_ = 0;
  line_.Show(Running());
  output_.Write("text\n");
  EXPECT_THAT(screen_.lines(), ElementsAre("text"));
  columns_ = 40;  // The terminal is back, smaller.
  clock_.Advance(line_.next_draw() - clock_.Now());
  line_.DrawIfDue();
  EXPECT_THAT(screen_.lines(), ElementsAre("text", "[syncline] running | round 3 | node ..."));
}

TEST_F(StatusLineTest, WithoutAStatusOutputIsPassedOnAsItIs) {
  output_.Write("a");
  output_.Write("");
  output_.Write("b\n");
  EXPECT_EQ(terminal_.writes, 2);
  EXPECT_THAT(screen_.lines(), ElementsAre("ab"));
}

TEST(PrintableTest, CutsBetweenCharactersAndCountsWideOnesAsTwo) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdef", 5), "ab...");
  EXPECT_EQ(Printable("abcdef", 2), "..");
  EXPECT_EQ(Printable("abcdef", 0), "");
  EXPECT_EQ(Printable("日本語", 6), "日本語");
  EXPECT_EQ(Printable("日本語", 5), "日...");
  EXPECT_EQ(Printable("日本語", 4), "...");
  for (int columns = 0; columns < 12; ++columns) {
    EXPECT_LE(Columns(Printable("aé日😀z日é", columns)), columns);
  }
}

TEST(PrintableTest, NothingOfItMovesTheCursor) {
  EXPECT_EQ(Printable("a\033[2Jb\rc\nd\x7f", 20), "a?[2Jb?c?d?");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J",
                      20),
            "??2J");                                                 // C1: CSI.
  EXPECT_EQ(Printable("\xff\xe6\x97|\xf0\x9f\x98", 20), "???|???");  // Not UTF-8.
}

TEST(FormatElapsedTest, GrowsFromMinutesToDays) {
  EXPECT_EQ(FormatElapsed(-absl::Seconds(1)), "0:00");
  EXPECT_EQ(FormatElapsed(absl::Seconds(7.9)), "0:07");
  EXPECT_EQ(FormatElapsed(absl::Seconds(3599)), "59:59");
  EXPECT_EQ(FormatElapsed(absl::Hours(3)), "3:00:00");
  EXPECT_EQ(FormatElapsed(absl::Hours(51) + absl::Seconds(61)), "2d 3:01:01");
}

// A real terminal.
class Pty {
 public:
  explicit Pty(unsigned short columns) {
    int main = -1;
    int terminal = -1;
    winsize size = {};
    size.ws_row = 10;
    size.ws_col = columns;
    EXPECT_EQ(openpty(&main, &terminal, nullptr, nullptr, &size), 0);
    main_ = base::UniqueFd(main);
    terminal_ = base::UniqueFd(terminal);
  }

  int terminal() const { return terminal_.get(); }

  void Resize(unsigned short columns) {
    winsize size = {};
    size.ws_row = 10;
    size.ws_col = columns;
    EXPECT_EQ(ioctl(main_.get(), TIOCSWINSZ, &size), 0);
  }

  // What has been written; the terminal's driver makes "\r\n" of "\n".
  std::string Read() {
    std::string all;
    pollfd ready = {main_.get(), POLLIN, 0};
    char buffer[4096];
    while (poll(&ready, 1, all.empty() ? 10000 : 0) > 0) {
      const ssize_t size = read(main_.get(), buffer, sizeof(buffer));
      if (size <= 0) break;
      all.append(buffer, static_cast<size_t>(size));
    }
    return all;
  }

 private:
  base::UniqueFd main_;
  base::UniqueFd terminal_;
};

TEST(StatusLineOnATerminalTest, FollowsItsWidth) {
  Pty pty(40);
  const absl::StatusOr<std::unique_ptr<FdSink>> opened = FdSink::Open(pty.terminal());
  ASSERT_TRUE(opened.ok()) << opened.status();
  FdSink& sink = **opened;
  const auto shown = [&] {
    const absl::Time deadline = MonotonicClock().Now() + absl::Seconds(60);
    EXPECT_TRUE(sink.Flush(absl::Seconds(60), deadline));
    return pty.Read();
  };
  FakeClock clock;
  StatusLine line(sink, [&pty] { return TerminalColumns(pty.terminal()); }, clock);
  Screen screen(10, 40);
  line.Show(Running());
  screen.Show(shown());
  EXPECT_THAT(screen.lines(), ElementsAre("[syncline] running | round 3 | node ..."));

  pty.Resize(30);
  clock.Advance(absl::Seconds(1));
  line.DrawIfDue();
  screen.Show(shown());
  EXPECT_THAT(screen.lines(), ElementsAre("[syncline] running | round..."));

  AboveStatusLine(line, sink).Write("text\n");
  line.Finish();
  screen.Show(shown());
  EXPECT_THAT(screen.lines(), ElementsAre("text"));
}

TEST(TerminalColumnsTest, AreNoneWhereThereIsNoTerminal) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const base::UniqueFd reader(pipe_fds[0]);
  const base::UniqueFd writer(pipe_fds[1]);
  EXPECT_EQ(TerminalColumns(writer.get()), 0);
  EXPECT_EQ(TerminalColumns(Pty(0).terminal()), 80);
  EXPECT_EQ(TerminalColumns(Pty(33).terminal()), 33);
}

TEST(WantsStatusLineTest, OnATerminalThatCanShowItUnlessSomebodyMinds) {
  const Pty pty(80);
  const Environment usual = {{"TERM", "xterm"}};
  using Mode = LaunchOptions::StatusLine;
  EXPECT_TRUE(WantsStatusLine(Mode::kAuto, usual, pty.terminal()));
  EXPECT_FALSE(WantsStatusLine(Mode::kNever, usual, pty.terminal()));
  EXPECT_FALSE(WantsStatusLine(Mode::kAuto, {}, pty.terminal()));
  EXPECT_FALSE(WantsStatusLine(Mode::kAuto, {{"TERM", "dumb"}}, pty.terminal()));
  for (const char* name : {"NO_COLOR", "CI"}) {
    EXPECT_FALSE(WantsStatusLine(Mode::kAuto, {{"TERM", "xterm"}, {name, "1"}}, pty.terminal()));
    EXPECT_TRUE(WantsStatusLine(Mode::kAuto, {{"TERM", "xterm"}, {name, ""}}, pty.terminal()));
    EXPECT_TRUE(WantsStatusLine(Mode::kAlways, {{name, "1"}}, pty.terminal()));
  }
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const base::UniqueFd reader(pipe_fds[0]);
  const base::UniqueFd writer(pipe_fds[1]);
  EXPECT_FALSE(WantsStatusLine(Mode::kAuto, usual, writer.get()));
  EXPECT_FALSE(WantsStatusLine(Mode::kAlways, usual, writer.get()));
}

}  // namespace
}  // namespace syncline::launch
