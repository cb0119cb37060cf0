// Console, Tail and FdSink: what becomes of the workers' output.
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/output/console.h"
#include "launch/output/fd_sink.h"
#include "launch/output/tail.h"
#include "launch/output/writer_thread.h"

namespace syncline::launch {
namespace {

using testing::ElementsAre;

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

class StringSink final : public TextSink {
 public:
  void Write(absl::string_view text) override { absl::StrAppend(&this->text, text); }
  bool full() const override { return is_full; }
  std::string text;
  bool is_full = false;
};

class ConsoleTest : public testing::Test {
 protected:
  FakeClock clock_;
  StringSink out_;
  StringSink err_;
  Console console_{out_, err_, Console::Outputs::kApart, clock_};
  Console::Stream* zero_ = console_.AddStream("[rank0]: ", Console::Target::kOut);
  Console::Stream* one_ = console_.AddStream("[rank1]: ", Console::Target::kOut);
};

TEST_F(ConsoleTest, EveryLineGetsThePrefixOfItsRank) {
  console_.Feed(zero_, "a\nb\n");
  console_.Feed(one_, "c\n\nd\n");
  EXPECT_EQ(out_.text, "[rank0]: a\n[rank0]: b\n[rank1]: c\n[rank1]: \n[rank1]: d\n");
  EXPECT_EQ(err_.text, "");
}

TEST_F(ConsoleTest, LinesThatComeInPiecesAreNotMixed) {
  console_.Feed(zero_, "first ");
  console_.Feed(one_, "other\nsec");
  console_.Feed(zero_, "half\n");
  console_.Feed(one_, "ond\n");
  EXPECT_EQ(out_.text, "[rank1]: other\n[rank0]: first half\n[rank1]: second\n");
}

TEST_F(ConsoleTest, ALineWithoutEndIsShownAfterTheHoldTimeAndContinuedWithoutPrefix) {
  console_.Feed(zero_, "Loading... ");
  EXPECT_EQ(console_.next_flush(), clock_.Now() + Console::kHoldTime);
  clock_.Advance(Console::kHoldTime / 2);
  console_.FlushHeld();
  EXPECT_EQ(out_.text, "");
  clock_.Advance(Console::kHoldTime / 2);
  console_.FlushHeld();
  EXPECT_EQ(out_.text, "[rank0]: Loading... ");
  EXPECT_EQ(console_.next_flush(), absl::InfiniteFuture());
  console_.Feed(zero_, "done\n");
  EXPECT_EQ(out_.text, "[rank0]: Loading... done\n");
}

TEST_F(ConsoleTest, AnUnfinishedLineIsEndedBeforeAnotherRankWrites) {
  console_.Feed(zero_, "Loading... ");
  clock_.Advance(Console::kHoldTime);
  console_.FlushHeld();
  console_.Feed(one_, "hello\n");
  console_.Feed(zero_, "done\n");
  EXPECT_EQ(out_.text, "[rank0]: Loading... \n[rank1]: hello\n[rank0]: done\n");
}

TEST_F(ConsoleTest, TheLastLineIsShownThoughItsEndIsMissing) {
  console_.Feed(zero_, "whole\npartial");
  console_.End(zero_);
  EXPECT_EQ(out_.text, "[rank0]: whole\n[rank0]: partial\n");
  console_.End(one_);
  EXPECT_EQ(out_.text, "[rank0]: whole\n[rank0]: partial\n");
}

TEST_F(ConsoleTest, EachStateOfAProgressBarShowsItsPrefixOnce) {
  console_.Feed(zero_, " 0%\r 50%\r100%\n");
  EXPECT_EQ(out_.text, "[rank0]:  0%\r[rank0]:  50%\r[rank0]: 100%\n");
}

TEST_F(ConsoleTest, ABarThatReturnsFirstIsShownAsItComes) {
  console_.Feed(zero_, "\r 0%");
  clock_.Advance(Console::kHoldTime);
  console_.FlushHeld();
  EXPECT_EQ(out_.text, "[rank0]:  0%");
  console_.Feed(zero_, "\r 50%");
  clock_.Advance(Console::kHoldTime);
  console_.FlushHeld();
  EXPECT_EQ(out_.text, "[rank0]:  0%\r[rank0]:  50%");
  console_.Feed(zero_, "\r100%\n");
  EXPECT_EQ(out_.text, "[rank0]:  0%\r[rank0]:  50%\r[rank0]: 100%\n");
}

TEST_F(ConsoleTest, ABarThatAnotherRankInterruptsGoesOnOnALineOfItsOwn) {
  console_.Feed(zero_, "10%\r");
  console_.Feed(one_, "hello\n");
  console_.Feed(zero_, "20%\r");
  EXPECT_EQ(out_.text, "[rank0]: 10%\n[rank1]: hello\n[rank0]: 20%");
}

TEST_F(ConsoleTest, DosLineEndsAreLineEnds) {
  console_.Feed(zero_, "a\r\nb\r");
  console_.Feed(zero_, "\nc\n");
  EXPECT_EQ(out_.text, "[rank0]: a\n[rank0]: b\n[rank0]: c\n");
}

TEST_F(ConsoleTest, AStreamWithoutPrefixIsPassedOnAsItComes) {
  Console::Stream* only = console_.AddStream("", Console::Target::kErr);
  console_.Feed(only, "a");
  EXPECT_EQ(err_.text, "a");
  console_.Feed(only, "\r\x1b[K");
  console_.Feed(only, "b\n\nc");
  EXPECT_EQ(err_.text, "a\r\x1b[Kb\n\nc");
  console_.Print("note");
  EXPECT_EQ(err_.text, "a\r\x1b[Kb\n\nc\nnote\n");
}

TEST_F(ConsoleTest, NothingIsAddedToStreamsWithoutPrefix) {
  StringSink terminal;
  Console console(terminal, terminal, Console::Outputs::kSame, clock_);
  Console::Stream* out = console.AddStream("", Console::Target::kOut);
  Console::Stream* err = console.AddStream("", Console::Target::kErr);
  console.Feed(out, "a");
  console.Feed(err, "b");
  console.Feed(out, "\rc");
  console.End(out);
  console.End(err);
  EXPECT_EQ(terminal.text, "ab\rc");
  console.Print("note");  // The launcher's own line is none of theirs.
  EXPECT_EQ(terminal.text, "ab\rc\nnote\n");
}

TEST_F(ConsoleTest, LinesOfSeveralStreamsWithoutPrefixAreNotMixed) {
  Console::Stream* first = console_.AddStream("", Console::Target::kErr);
  Console::Stream* second = console_.AddStream("", Console::Target::kErr);
  console_.Feed(first, "1");
  console_.Feed(second, "2");
  console_.Feed(first, " one\n");
  console_.Feed(second, " two\nmore");
  EXPECT_EQ(err_.text, "1 one\n2 two\n");
  clock_.Advance(Console::kHoldTime);
  console_.FlushHeld();
  EXPECT_EQ(err_.text, "1 one\n2 two\nmore");
  console_.Feed(first, std::string(100000, 'x'));  // No line is held back without end.
  EXPECT_EQ(err_.text, absl::StrCat("1 one\n2 two\nmore", std::string(100000, 'x')));
  err_.text.clear();
  console_.Feed(second, "the rest");
  console_.End(first);
  console_.Feed(second, "!");  // It is alone now.
  EXPECT_EQ(err_.text, "the rest!");
  console_.Feed(second, "a");
  console_.End(second);
  EXPECT_EQ(err_.text, "the rest!a");
}

TEST_F(ConsoleTest, TheLaunchersOwnLinesStandAlone) {
  Console::Stream* error = console_.AddStream("[rank0]: ", Console::Target::kErr);
  console_.Feed(error, "10%\r");
  console_.Print("note");
  EXPECT_EQ(err_.text, "[rank0]: 10%\nnote\n");
}

TEST_F(ConsoleTest, OutputsOnOneTerminalDoNotDisturbEachOthersLines) {
  StringSink terminal;
  Console console(terminal, terminal, Console::Outputs::kSame, clock_);
  console.Feed(console.AddStream("[rank0]: ", Console::Target::kErr), "10%\r");
  console.Feed(console.AddStream("[rank0]: ", Console::Target::kOut), "text\n");
  EXPECT_EQ(terminal.text, "[rank0]: 10%\n[rank0]: text\n");
}

TEST_F(ConsoleTest, AnEndlessLineIsShownInPieces) {
  const std::string much(100 << 10, 'x');
  console_.Feed(zero_, much);
  EXPECT_EQ(out_.text, "[rank0]: " + much);
}

TEST_F(ConsoleTest, WholeLinesAreLeftOutWhileTheSinkIsFullAndCounted) {
  console_.Feed(zero_, "a\n");
  out_.is_full = true;
  console_.Feed(zero_, "b\nc\nd");
  console_.Feed(one_, "e\n");
  out_.is_full = false;
  console_.Feed(zero_, "d\nf\n");
  EXPECT_EQ(out_.text,
            "[rank0]: a\n[rank0]: ... 2 lines dropped, reader too slow\n[rank0]: dd\n[rank0]: f\n");
  out_.text.clear();
  console_.Feed(one_, "g\n");
  EXPECT_EQ(out_.text, "[rank1]: ... 1 line dropped, reader too slow\n[rank1]: g\n");
}

TEST_F(ConsoleTest, ALineThatIsLeftOutInPartIsLeftOutToItsEnd) {
  console_.Feed(zero_, "10%");
  clock_.Advance(Console::kHoldTime);
  console_.FlushHeld();
  out_.is_full = true;
  console_.Feed(zero_, std::string(100 << 10, 'x'));
  out_.is_full = false;
  console_.Feed(zero_, "rest\nnext\n");
  EXPECT_EQ(out_.text,
            "[rank0]: 10%\n[rank0]: ... 1 line dropped, reader too slow\n[rank0]: next\n");
}

TEST_F(ConsoleTest, TheEndOfAStreamTellsOfItsLastGap) {
  out_.is_full = true;
  console_.Feed(zero_, "a\nb");
  console_.End(zero_);
  console_.End(one_);
  EXPECT_EQ(out_.text, "[rank0]: ... 2 lines dropped, reader too slow\n");
}

TEST_F(ConsoleTest, StatesOfAProgressBarAreLeftOutSilently) {
  out_.is_full = true;
  console_.Feed(zero_, " 0%\r 50%\r");
  out_.is_full = false;
  console_.Feed(zero_, "100%\n");
  EXPECT_EQ(out_.text, "[rank0]: 100%\n");
}

TEST_F(ConsoleTest, AStreamWithoutPrefixLeavesOutWholeLinesToo) {
  Console::Stream* only = console_.AddStream("", Console::Target::kOut);
  console_.Feed(only, "a\nb");
  out_.is_full = true;
  console_.Feed(only, "b\nc\nd");
  out_.is_full = false;
  console_.Feed(only, "d");
  console_.Feed(only, "d\ne");
  EXPECT_EQ(out_.text, "a\nb\n... 3 lines dropped, reader too slow\ne");
  out_.is_full = true;
  console_.Feed(only, "e");
  console_.End(only);
  EXPECT_EQ(out_.text,
            "a\nb\n... 3 lines dropped, reader too slow\ne\n... 1 line dropped, reader "
            "too slow\n");
}

TEST_F(ConsoleTest, ATopicIsSaidOnce) {
  console_.PrintOnce("disk", "full");
  console_.PrintOnce("disk", "still full");
  console_.PrintOnce("other", "text");
  EXPECT_EQ(err_.text, "full\ntext\n");
}

TEST(TailTest, KeepsTheLastLinesOfAPieceWithMany) {
  Tail tail;
  tail.Feed("begun ");
  std::string much;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&much, "line ", i, "\n");
  tail.Feed(much + "rest");
  const std::vector<std::string> lines = tail.Lines();
  ASSERT_EQ(lines.size(), Tail::kMaxLines);
  EXPECT_EQ(lines.front(), "line 981");
  EXPECT_EQ(lines.back(), "rest");
}

TEST(TailTest, KeepsTheLastLines) {
  Tail tail;
  for (int i = 0; i < 50; ++i) tail.Feed(absl::StrCat("line ", i, "\n"));
  std::vector<std::string> lines = tail.Lines();
  ASSERT_EQ(lines.size(), Tail::kMaxLines);
  EXPECT_EQ(lines.front(), "line 30");
  tail.Feed("rest");
  lines = tail.Lines();
  ASSERT_EQ(lines.size(), Tail::kMaxLines);
  EXPECT_EQ(lines.front(), "line 31");
  EXPECT_EQ(lines.back(), "rest");
}

TEST(TailTest, KeepsTheLastStateOfAProgressBarAndTheBeginningOfALongLine) {
  Tail tail;
  tail.Feed(" 0%\r 50%\r");
  tail.Feed("100%\r\n");
  tail.Feed(std::string(5000, 'x'));
  EXPECT_THAT(tail.Lines(), ElementsAre("100%", std::string(Tail::kMaxLineSize, 'x')));
}

class FdSinkTest : public testing::Test {
 protected:
  FdSinkTest() {
    std::signal(SIGPIPE, SIG_IGN);  // A writer may be left behind when its reader goes.
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    reader_ = base::UniqueFd(fds[0]);
    writer_ = base::UniqueFd(fds[1]);
  }

  static std::unique_ptr<FdSink> Open(int fd, size_t max_pending = WriterThread::kMaxPending,
                                      std::function<void()> reader_left = nullptr) {
    absl::StatusOr<std::unique_ptr<FdSink>> sink =
        FdSink::Open(fd, max_pending, std::move(reader_left));
    EXPECT_TRUE(sink.ok()) << sink.status();
    return *std::move(sink);
  }
  static absl::Time Soon() { return MonotonicClock().Now() + absl::Seconds(60); }
  static bool Flush(FdSink& sink) { return sink.Flush(absl::Seconds(60), Soon()); }

  // The pipe holds all that it can.
  void AwaitStall(const FdSink& sink) {
    pollfd room = {writer_.get(), POLLOUT, 0};
    while (!sink.stalled() || poll(&room, 1, 0) > 0) absl::SleepFor(absl::Milliseconds(1));
  }

  // All that the pipe holds once the sink has written everything to it.
  std::string ReadAll(FdSink& sink) {
    std::string received;
    char buffer[65536];
    pollfd ready = {reader_.get(), POLLIN, 0};
    while (sink.pending_size() > 0 || poll(&ready, 1, 0) > 0) {
      // The sink says a moment later that it has written the last bytes.
      if (poll(&ready, 1, 0) <= 0) continue;
      const ssize_t size = read(reader_.get(), buffer, sizeof(buffer));
      if (size <= 0) break;
      received.append(buffer, static_cast<size_t>(size));
    }
    return received;
  }

  base::UniqueFd reader_;
  base::UniqueFd writer_;
};

TEST_F(FdSinkTest, DoesNotWaitForASlowReaderAndLosesNothing) {
  const auto sink = Open(writer_.get(), 256 << 10);
  std::string sent;
  for (int i = 0; !sink->full(); ++i) {
    const std::string text = absl::StrCat("line ", i, "\n");
    sink->Write(text);
    sent += text;
  }
  std::string received(sent.size(), '\0');
  for (size_t at = 0; at < received.size();) {
    const ssize_t size = read(reader_.get(), &received[at], received.size() - at);
    ASSERT_GT(size, 0);
    at += static_cast<size_t>(size);
  }
  EXPECT_TRUE(Flush(*sink));
  EXPECT_EQ(sink->pending_size(), 0u);
  EXPECT_FALSE(sink->full());
  EXPECT_EQ(received, sent);
}

TEST_F(FdSinkTest, StaysFullUntilTheReaderHasTakenHalf) {
  constexpr size_t kMost = 256 << 10;
  const auto sink = Open(writer_.get(), kMost);
  while (!sink->full()) sink->Write("0123456789\n");
  AwaitStall(*sink);
  const size_t superfluous = sink->pending_size() - kMost / 2;
  size_t taken = 0;
  char buffer[PIPE_BUF];
  while (sink->full()) {
    ASSERT_LT(taken, superfluous + (kMost / 2));
    const ssize_t size = read(reader_.get(), buffer, sizeof(buffer));
    ASSERT_GT(size, 0);
    taken += static_cast<size_t>(size);
  }
  EXPECT_LE(sink->pending_size(), kMost / 2);
  EXPECT_GE(taken + 2 * PIPE_BUF, superfluous);
}

TEST_F(FdSinkTest, FlushGivesUpOnAReaderThatDoesNotRead) {
  const auto sink = Open(writer_.get());
  sink->Write(std::string(1 << 20, 'x'));
  EXPECT_FALSE(sink->Flush(absl::Milliseconds(10), Soon()));
  EXPECT_GT(sink->pending_size(), 0u);
}

TEST_F(FdSinkTest, FlushEndsWhenItIsCancelledAndAtItsDeadline) {
  const auto sink = Open(writer_.get());
  sink->Write(std::string(1 << 20, 'x'));
  int asked = 0;
  EXPECT_FALSE(sink->Flush(absl::Seconds(60), Soon(), [&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(sink->Flush(absl::Seconds(60), MonotonicClock().Now()));
}

TEST_F(FdSinkTest, DropsTextWhenTheReaderIsGone) {
  reader_.reset();
  absl::Notification left;
  const auto sink = Open(writer_.get(), WriterThread::kMaxPending, [&] { left.Notify(); });
  sink->Write("lost");
  EXPECT_TRUE(Flush(*sink));
  EXPECT_EQ(sink->pending_size(), 0u);
  EXPECT_TRUE(sink->reader_gone());
  EXPECT_TRUE(left.HasBeenNotified());
}

TEST_F(FdSinkTest, BeyondItsReserveItDropsWholeLinesAndSaysHowMany) {
  const auto sink = Open(writer_.get(), 256 << 10);
  const std::string line(999, 'x');
  constexpr int kLines = 3000;  // 3 MB: what the pipe holds, the limit, the reserve, and more.
  for (int i = 0; i < kLines; ++i) {
    if (i == 500) AwaitStall(*sink);  // From now on the pipe takes nothing.
    sink->Write(line + "\n");
  }
  std::string received = ReadAll(*sink);
  sink->Write("at last\n");
  ASSERT_TRUE(Flush(*sink));
  received += ReadAll(*sink);
  std::vector<std::string> lines = absl::StrSplit(received, '\n');
  ASSERT_EQ(lines.back(), "");
  lines.pop_back();
  ASSERT_EQ(lines.back(), "at last");
  lines.pop_back();
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back(), absl::StrCat("syncline-run: ... ", kLines + 1 - lines.size(),
                                       " lines dropped, reader too slow"));
  lines.pop_back();
  EXPECT_THAT(lines, testing::Each(line));
}

TEST_F(FdSinkTest, WritesWholeLinesToAPipe) {
  ASSERT_EQ(fcntl(writer_.get(), F_SETFL, O_DIRECT), 0);
  ASSERT_EQ(fcntl(writer_.get(), F_SETPIPE_SZ, 1 << 20), 1 << 20);
  const auto sink = Open(writer_.get());
  std::string text;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, std::string(i % 200, 'x'), "\n");
  sink->Write(text);
  ASSERT_TRUE(Flush(*sink));
  // A packet pipe gives each write back as one.
  std::string received;
  char buffer[PIPE_BUF];
  while (received.size() < text.size()) {
    const ssize_t size = read(reader_.get(), buffer, sizeof(buffer));
    ASSERT_GT(size, 0);
    received.append(buffer, static_cast<size_t>(size));
    EXPECT_EQ(received.back(), '\n');
  }
  EXPECT_EQ(received, text);
}

TEST_F(FdSinkTest, ADescriptorThatOthersMadeNonBlockingLosesNothing) {
  fcntl(writer_.get(), F_SETFL, O_NONBLOCK);
  const auto sink = Open(writer_.get());
  std::string sent;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&sent, "line ", i, "\n");
  sink->Write(sent);
  EXPECT_EQ(ReadAll(*sink), sent);
}

TEST_F(FdSinkTest, AFullDiskLosesWholeLinesAndTheFileSaysHowMany) {
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string path = absl::StrCat(testing::TempDir(), "/fd_sink_test_", getpid());
  const base::UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  unlink(path.c_str());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 8;
  const auto sink = Open(file.get());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  sink->Write("first\nsecond\n");
  sink->Write("third\nhalf of ");
  const bool flushed = Flush(*sink);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(flushed);
  sink->Write("the fourth\nfifth\n");
  ASSERT_TRUE(Flush(*sink));
  char text[4096];
  const ssize_t size = pread(file.get(), text, sizeof(text), 0);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(size)),
            "first\nse\nsyncline-run: 3 lines are missing here: File too large\nfifth\n");
  EXPECT_EQ(sink->Missing(), "");
}

TEST_F(FdSinkTest, WhatAFullDiskNeverTakesIsMissing) {
  const base::UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  const auto sink = Open(full.get());
  EXPECT_EQ(sink->Missing(), "");
  sink->Write("first\n");
  ASSERT_TRUE(Flush(*sink));
  EXPECT_EQ(sink->Missing(), "1 line (No space left on device)");
  sink->Write("second\nthe beginning of the third");
  ASSERT_TRUE(Flush(*sink));
  EXPECT_EQ(sink->Missing(), "3 lines (No space left on device)");
}

TEST_F(FdSinkTest, WhatAReaderDoesNotTakeIsMissing) {
  const auto sink = Open(writer_.get());
  sink->Write(std::string(1 << 20, 'x'));
  EXPECT_FALSE(sink->Flush(absl::Milliseconds(100), Soon()));
  AwaitStall(*sink);
  EXPECT_EQ(sink->Missing(),
            absl::StrCat(sink->pending_size(), " bytes (the reader does not take them)"));
  reader_.reset();
  ASSERT_TRUE(Flush(*sink));
  EXPECT_EQ(sink->Missing(), "");  // It has left: it lacks nothing.
}

}  // namespace
}  // namespace syncline::launch
