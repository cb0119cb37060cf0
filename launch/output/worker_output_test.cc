#include "launch/output/worker_output.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/output/console.h"
#include "launch/output/fd_sink.h"
#include "launch/output/log_file.h"

namespace syncline::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class StringSink final : public TextSink {
 public:
  void Write(absl::string_view text) override { absl::StrAppend(&this->text, text); }
  std::string text;
};

bool Readable(int fd) {
  pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, 0) > 0;
}

class WorkerOutputTest : public testing::Test {
 protected:
  WorkerOutputTest() : path_(testing::TempDir() + "/output-XXXXXX") {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    reader_ = base::UniqueFd(fds[0]);
    writer_ = base::UniqueFd(fds[1]);
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    path_ += "/log";
  }
  ~WorkerOutputTest() override {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }

  std::unique_ptr<OutputLog> Open(const std::string& path) {
    LogFile::Options options;
    options.path = path;
    absl::StatusOr<LogFile> file = LogFile::Open(options);
    EXPECT_TRUE(file.ok()) << file.status();
    return std::make_unique<LogFile>(*std::move(file));
  }
  std::string Logged() {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Send(const std::string& bytes) {
    ASSERT_EQ(write(writer_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  base::UniqueFd reader_;
  base::UniqueFd writer_;
  std::string path_;
  MonotonicClock clock_;
  StringSink out_;
  StringSink err_;
  Console console_{out_, err_, Console::Outputs::kApart, clock_};
};

TEST_F(WorkerOutputTest, BytesReachConsoleLogAndTail) {
  WorkerOutput::Targets targets;
  targets.stream = console_.AddStream("[rank0]: ", Console::Target::kOut);
  targets.log = Open(path_);
  WorkerOutput output(reader_.get(), console_, std::move(targets));
  const std::string bytes("a\0\xff\nb", 5);
  Send(bytes);
  output.Read();
  writer_.reset();
  output.Read();
  EXPECT_FALSE(output.open());
  EXPECT_EQ(Logged(), bytes);
  EXPECT_EQ(out_.text, std::string("[rank0]: a\0\xff\n[rank0]: b\n", 24));
  EXPECT_THAT(output.LastLines(), ElementsAre(std::string("a\0\xff", 3), "b"));
}

TEST_F(WorkerOutputTest, WhatIsInThePipeIsTakenThoughAGrandchildHoldsItOpen) {
  WorkerOutput::Targets targets;
  targets.log = Open(path_);
  WorkerOutput output(reader_.get(), console_, std::move(targets));
  fcntl(writer_.get(), F_SETPIPE_SZ, 1 << 20);
  const std::string much(512 << 10, 'x');
  Send(much);
  output.Drain();
  EXPECT_TRUE(output.open());
  EXPECT_EQ(Logged(), much);
  Send("later");
  output.Drain();
  EXPECT_EQ(Logged(), much + "later");
}

TEST_F(WorkerOutputTest, AReaderThatDoesNotReadKeepsNothingFromTheLog) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const base::UniqueFd console_reader(fds[0]);
  const base::UniqueFd console_writer(fds[1]);
  const absl::StatusOr<std::unique_ptr<FdSink>> opened =
      FdSink::Open(console_writer.get(), 1 << 20);
  ASSERT_TRUE(opened.ok()) << opened.status();
  FdSink& sink = **opened;
  Console console(sink, sink, Console::Outputs::kSame, clock_);
  WorkerOutput::Targets targets;
  targets.stream = console.AddStream("[rank0]: ", Console::Target::kOut);
  targets.log = Open(path_);
  WorkerOutput output(reader_.get(), console, std::move(targets));
  std::string sent;
  for (int i = 0; i < 500; ++i) {
    std::string lines;
    for (int j = 0; j < 500; ++j) absl::StrAppend(&lines, "line ", i, "/", j, "\n");
    Send(lines);
    output.Read();
    sent += lines;
  }
  writer_.reset();
  output.Read();
  EXPECT_EQ(Logged(), sent);
  EXPECT_LT(sink.pending_size(), size_t{2} << 20);
  std::string seen;
  char buffer[65536];
  while (sink.pending_size() > 0 || Readable(console_reader.get())) {
    // What has been written is pending for a moment longer; a read would then wait for ever.
    if (!Readable(console_reader.get())) continue;
    const ssize_t size = read(console_reader.get(), buffer, sizeof(buffer));
    ASSERT_GT(size, 0);
    seen.append(buffer, static_cast<size_t>(size));
  }
  int lines = 0;
  for (const char byte : seen) lines += byte == '\n' ? 1 : 0;
  EXPECT_THAT(seen, HasSubstr(absl::StrCat("\n[rank0]: ... ", 500 * 500 - (lines - 1),
                                           " lines dropped, reader too slow\n")));
}

TEST_F(WorkerOutputTest, AFullDiskIsSaidOnceAndTheConsoleGoesOn) {
  WorkerOutput::Targets targets;
  targets.stream = console_.AddStream("[rank0]: ", Console::Target::kOut);
  targets.log = Open("/dev/full");
  WorkerOutput output(reader_.get(), console_, std::move(targets));
  for (const char* line : {"one\n", "two\n"}) {
    Send(line);
    output.Read();
  }
  EXPECT_EQ(out_.text, "[rank0]: one\n[rank0]: two\n");
  EXPECT_THAT(err_.text, HasSubstr("the log '/dev/full' cannot be written: No space left"));
  EXPECT_EQ(err_.text.find('\n'), err_.text.size() - 1);
}

}  // namespace
}  // namespace syncline::launch
