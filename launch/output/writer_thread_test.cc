// WriterThread, QueuedLog and MessageQueue: what stands between the launcher and what may block.
#include "launch/output/writer_thread.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/output/log_file.h"
#include "launch/output/message_queue.h"
#include "launch/output/queued_log.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(60);

std::unique_ptr<WriterThread> Start(size_t max_pending = WriterThread::kMaxPending) {
  absl::StatusOr<std::unique_ptr<WriterThread>> writer = WriterThread::Start(max_pending);
  EXPECT_TRUE(writer.ok()) << writer.status();
  return *std::move(writer);
}

absl::Time Soon() { return MonotonicClock().Now() + kLong; }

// Blocks until it is opened, as a disk that does not answer.
class Gate {
 public:
  ~Gate() { Open(); }
  void Open() {
    if (!open_->HasBeenNotified()) open_->Notify();
  }
  // For the thread, which may outlive this.
  std::function<void()> Pass() {
    return [open = open_] { open->WaitForNotification(); };
  }

 private:
  const std::shared_ptr<absl::Notification> open_ = std::make_shared<absl::Notification>();
};

class Recorder final : public WriterThread::Output {
 public:
  size_t Write(absl::string_view bytes) override {
    const size_t size = std::min<size_t>(bytes.size(), 10);
    absl::MutexLock lock(&mutex_);
    absl::StrAppend(&text_, bytes.substr(0, size));
    return size;
  }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

TEST(WriterThreadTest, OutputsGetTheirBytesInOrder) {
  const auto writer = Start();
  const auto one = std::make_shared<Recorder>();
  const auto other = std::make_shared<Recorder>();
  std::string sent;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = absl::StrCat("piece ", i, "\n");
    EXPECT_TRUE(writer->Append(one, text));
    if (i % 3 == 0) writer->Append(other, "x");
    sent += text;
  }
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(one->text(), sent);
  EXPECT_EQ(other->text(), std::string(334, 'x'));
  EXPECT_EQ(writer->pending_size(), 0u);
}

TEST(WriterThreadTest, AnOperationRunsAheadOfBytesThatWait) {
  const auto writer = Start();
  Gate gate;
  const auto recorder = std::make_shared<Recorder>();
  EXPECT_FALSE(writer->Run(gate.Pass(), absl::ZeroDuration()));
  writer->Append(recorder, "bytes");
  const auto seen = std::make_shared<std::string>("nothing");
  EXPECT_FALSE(writer->Run([=] { *seen = recorder->text(); }, absl::ZeroDuration()));
  gate.Open();
  EXPECT_TRUE(writer->Run([] {}, kLong));
  EXPECT_EQ(*seen, "");
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(recorder->text(), "bytes");
}

TEST(WriterThreadTest, NobodyWaitsLongerThanHeSays) {
  const auto writer = Start();
  Gate gate;
  EXPECT_FALSE(writer->Run(gate.Pass(), absl::Milliseconds(20)));
  // The timeout counts from the start of the call, not for each call that waits after it.
  EXPECT_FALSE(writer->Run([] {}, absl::Milliseconds(20)));
  writer->Append(std::make_shared<Recorder>(), "bytes");
  EXPECT_FALSE(writer->Flush(absl::Milliseconds(20), Soon()));
  EXPECT_FALSE(writer->Flush(kLong, MonotonicClock().Now()));
  EXPECT_FALSE(writer->Flush(kLong, Soon(), [] { return true; }));
  EXPECT_EQ(writer->pending_size(), 5u);
  while (!writer->stalled()) std::this_thread::yield();
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_FALSE(writer->stalled());
}

TEST(WriterThreadTest, ItsEndWaitsForNothing) {
  Gate gate;
  const auto recorder = std::make_shared<Recorder>();
  {
    const auto writer = Start();
    writer->Run(gate.Pass(), absl::ZeroDuration());
    writer->Append(recorder, "given up");
  }
  gate.Open();
  while (recorder.use_count() > 1) std::this_thread::yield();
  EXPECT_EQ(recorder->text(), "");
}

TEST(WriterThreadTest, BeyondItsLimitAndAReserveItTakesNoMore) {
  const auto writer = Start(1000);
  Gate gate;
  writer->Run(gate.Pass(), absl::ZeroDuration());
  const auto recorder = std::make_shared<Recorder>();
  EXPECT_TRUE(writer->Append(recorder, std::string(1000, 'x')));
  EXPECT_FALSE(writer->full());
  EXPECT_TRUE(writer->Append(recorder, "x"));
  EXPECT_TRUE(writer->full());
  EXPECT_TRUE(writer->Append(recorder, std::string(1 << 20, 'x').substr(1)));
  EXPECT_FALSE(writer->Append(recorder, "x"));
  EXPECT_EQ(writer->pending_size(), 1000u + (1 << 20));
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_FALSE(writer->full());
}

class QueuedLogTest : public testing::Test {
 protected:
  QueuedLogTest() : folder_(testing::TempDir() + "/queued_log-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    options_.path = folder_ + "/log";
  }
  ~QueuedLogTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<QueuedLog>> Open(WriterThread& writer,
                                                  absl::Duration timeout = kLong) {
    return QueuedLog::Open(
        writer, options_,
        [errors = errors_](const absl::Status& status) {
          errors->Put({std::string(status.message()), ""});
        },
        timeout);
  }
  std::string Text() {
    std::ifstream file(options_.path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::string folder_;
  LogFile::Options options_;
  const std::shared_ptr<MessageQueue> errors_ = std::make_shared<MessageQueue>();
};

TEST_F(QueuedLogTest, BytesReachTheFileAsTheyCome) {
  const auto writer = Start();
  const std::string bytes("a\0\xff\xfe\r\n no end", 13);
  {
    const auto log = Open(*writer);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->path(), options_.path);
    EXPECT_TRUE((*log)->Write(bytes).ok());
    EXPECT_TRUE((*log)->Write("more").ok());
  }
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(Text(), bytes + "more");
  EXPECT_THAT(errors_->Take(), IsEmpty());
}

TEST_F(QueuedLogTest, AFileThatCannotBeOpenedIsAnErrorAtOnce) {
  const auto writer = Start();
  std::ofstream(folder_ + "/file") << "a file";
  options_.path = folder_ + "/file/log";
  EXPECT_THAT(std::string(Open(*writer).status().message()), HasSubstr("Not a directory"));
  EXPECT_THAT(errors_->Take(), IsEmpty());
}

TEST_F(QueuedLogTest, AFileThatIsOpenedLateLosesNothing) {
  const auto writer = Start();
  Gate gate;
  writer->Run(gate.Pass(), absl::ZeroDuration());
  const auto log = Open(*writer, absl::Milliseconds(20));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE((*log)->Write("line\n").ok());
  const std::vector<MessageQueue::Message> said = errors_->Take();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].text, HasSubstr("does not answer"));
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(Text(), "line\n");
}

TEST_F(QueuedLogTest, AFileThatCannotBeOpenedLateIsToldLate) {
  const auto writer = Start();
  Gate gate;
  std::ofstream(folder_ + "/file") << "a file";
  options_.path = folder_ + "/file/log";
  writer->Run(gate.Pass(), absl::ZeroDuration());
  const auto log = Open(*writer, absl::Milliseconds(20));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE((*log)->Write("line\n").ok());
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  const std::vector<MessageQueue::Message> said = errors_->Take();
  ASSERT_THAT(said, SizeIs(2));
  EXPECT_THAT(said[1].text, HasSubstr("Not a directory"));
}

TEST_F(QueuedLogTest, WhileItsDiskDoesNotAnswerWholeLinesAreLeftOutAndCounted) {
  const auto writer = Start(100);
  const auto log = Open(*writer);
  ASSERT_TRUE(log.ok()) << log.status();
  Gate gate;
  writer->Run(gate.Pass(), absl::ZeroDuration());
  const std::string before(120, 'a');
  EXPECT_TRUE((*log)->Write(before + "\nbegun ").ok());
  EXPECT_THAT(std::string((*log)->Write("and finished\nnot taken\nnor ").message()),
              HasSubstr("not written as fast"));
  EXPECT_TRUE((*log)->Write("this, ").ok());
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_TRUE((*log)->Write("to its end\nafter\n").ok());
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(Text(), before +
                        "\nbegun and finished\n[syncline-run: 31 bytes are missing here: the file "
                        "could not be written]\nafter\n");
}

TEST_F(QueuedLogTest, TheEndOfALogTellsOfItsLastGap) {
  const auto writer = Start(10);
  auto log = Open(*writer);
  ASSERT_TRUE(log.ok()) << log.status();
  Gate gate;
  writer->Run(gate.Pass(), absl::ZeroDuration());
  EXPECT_TRUE((*log)->Write("0123456789\n").ok());
  EXPECT_FALSE((*log)->Write("lost\n").ok());
  log->reset();
  gate.Open();
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  EXPECT_EQ(
      Text(),
      "0123456789\n[syncline-run: 5 bytes are missing here: the file could not be written]\n");
}

TEST_F(QueuedLogTest, ErrorsOfTheDiskAreTold) {
  const auto writer = Start();
  options_.path = "/dev/full";
  const auto log = Open(*writer);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE((*log)->Write("line\n").ok());
  EXPECT_TRUE(writer->Flush(kLong, Soon()));
  const std::vector<MessageQueue::Message> said = errors_->Take();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].text, HasSubstr("No space left"));
}

TEST(MessageQueueTest, IsReadableWhileThereIsSomethingToTake) {
  MessageQueue queue;
  pollfd ready = {queue.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  std::thread([&queue] { queue.Put({"line", "topic"}); }).join();
  EXPECT_EQ(poll(&ready, 1, 0), 1);
  const std::vector<MessageQueue::Message> messages = queue.Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].text, "line");
  EXPECT_EQ(messages[0].topic, "topic");
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  queue.Wake();
  EXPECT_EQ(poll(&ready, 1, 0), 1);
  EXPECT_THAT(queue.Take(), IsEmpty());
}

TEST(MessageQueueTest, BeyondItsLimitItCounts) {
  MessageQueue queue;
  for (size_t i = 0; i < MessageQueue::kMaxMessages + 7; ++i) queue.Put({"line", ""});
  const std::vector<MessageQueue::Message> messages = queue.Take();
  ASSERT_THAT(messages, SizeIs(MessageQueue::kMaxMessages + 1));
  EXPECT_EQ(messages.back().text, "... 7 lines of the log dropped");
  EXPECT_THAT(queue.Take(), IsEmpty());
}

}  // namespace
}  // namespace syncline::launch
