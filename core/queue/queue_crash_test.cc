// Kills a process at each instruction of a put or a get, and looks at what it leaves.
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"
#include "syncline/tensor_queue.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr size_t kCapacity = 4096;
constexpr int kMostSteps = 200000;
// As many victims of a call are enough where the sanitizers make it several times as long: each of
// them is led to its end step by step.
constexpr int kEnoughVictims = 100;

int stride = 1;  // Of all instructions, one of so many is tried.

// A child that has been killed. It stays a zombie until Reap.
class Victim {
 public:
  // Runs `body` in a child, which is killed before its instruction number `step`.
  Victim(const std::function<void()>& prepare, const std::function<void()>& body, int step) {
    pid_ = fork();
    if (pid_ == 0) {
      prepare();
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
      raise(SIGSTOP);
      body();
      raise(SIGSTOP);
      _exit(0);
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    if (WIFEXITED(status)) {
      may_trace_ = false;
      pid_ = -1;
      return;
    }
    for (int i = 0; i < step && !has_finished_; ++i) {
      ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr);
      waitpid(pid_, &status, 0);
      has_finished_ = !WIFSTOPPED(status) || WSTOPSIG(status) == SIGSTOP;
      ++steps_;
    }
    kill(pid_, SIGKILL);
  }
  ~Victim() { Reap(); }

  void Reap() {
    int status = 0;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    pid_ = -1;
  }

  pid_t pid() const { return pid_; }
  bool may_trace() const { return may_trace_; }
  bool has_finished() const { return has_finished_; }  // Before it was to be killed.
  int steps() const { return steps_; }                 // That it has made.

 private:
  pid_t pid_;
  bool may_trace_ = true;
  bool has_finished_ = false;
  int steps_ = 0;
};

// The content of a message: `size` times `byte`.
absl::Status Put(TensorQueue& queue, char byte, size_t size) {
  std::string bytes(size, byte);
  return queue.Put({Tensor(bytes.data(), DType::kUInt8, {static_cast<int64_t>(size)})}, "", kLong);
}

// Its first byte; '!' if it is not of one byte all through.
char ByteOf(const TensorQueue::Message& message) {
  const auto* const data = message.tensors.at(0).data_as<char>();
  const std::string bytes(data, message.tensors[0].nbytes());
  return bytes.find_first_not_of(bytes[0]) == std::string::npos ? bytes[0] : '!';
}

// That nothing is left in the queue, and that all of it can be used.
void ExpectWhole(TensorQueue& queue) {
  EXPECT_FALSE(queue.TryGet().value().has_value());
  ASSERT_TRUE(queue.Put({}, std::string(kCapacity - 16, 'x'), kLong).ok());
  EXPECT_EQ(queue.stats().messages, 1);
  EXPECT_EQ(queue.stats().bytes, kCapacity);
  ASSERT_TRUE(queue.Get(kLong).ok());
  EXPECT_EQ(queue.stats().bytes, 0u);
  for (int i = 0; i < 200; ++i) {  // More than there are slots.
    ASSERT_TRUE(Put(queue, 'x', 100).ok());
    ASSERT_EQ(ByteOf(queue.Get(kLong).value()), 'x');
  }
}

// Calls `try_step` with a queue, a victim of each step in turn, and its number, until the victim
// finishes first.
template <typename Body, typename Check>
void KillAtEachStep(const Body& body, const Check& check) {
  // What a first call does, such as reading /proc, is not what is looked at.
  const auto prepare = [] {
    const auto other = TensorQueue::Create({kCapacity, 0}).value();
    Put(*other, 'p', 1000).IgnoreError();
    other->Get(kLong).IgnoreError();
    other->Close().IgnoreError();
  };
  const auto queue_in_use = [] {
    auto queue = TensorQueue::Create({kCapacity, 0}).value();
    // So that messages wrap around the ring's end, and lie where others were.
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(Put(*queue, 'a' + i, 1000).ok());
    }
    EXPECT_TRUE(queue->Get(kLong).ok());
    EXPECT_TRUE(queue->Get(kLong).ok());
    return queue;
  };
  int each = stride;
  if (stride > 1) {
    const auto queue = queue_in_use();
    const Victim whole(prepare, [&] { body(*queue); }, kMostSteps);
    each = std::max(stride, whole.steps() / kEnoughVictims | 1);  // Odd: see below.
  }
  for (int step = 0; step < kMostSteps; step += each) {
    SCOPED_TRACE(step);
    const auto queue = queue_in_use();
    if (::testing::Test::HasFailure()) return;
    Victim victim(prepare, [&] { body(*queue); }, step);
    if (!victim.may_trace()) GTEST_SKIP() << "may not trace processes";
    if (step % 2 == 0) victim.Reap();  // Of the others a zombie stays.
    check(*queue, victim);
    if (::testing::Test::HasFailure()) return;
    if (!queue->is_closed()) ExpectWhole(*queue);
    if (victim.has_finished()) {
      EXPECT_GT(step, 100);
      std::printf("%d instructions\n", step);
      return;
    }
  }
  FAIL() << "it does not end";
}

TEST(QueueCrashTest, AProducerMayDieAtAnyInstruction) {
  int whole = 0, lost = 0, never = 0;
  KillAtEachStep([](TensorQueue& queue) { Put(queue, 'v', 1500).IgnoreError(); },
                 [&](TensorQueue& queue, const Victim& victim) {
                   ASSERT_TRUE(Put(queue, 'e', 700).ok());
                   EXPECT_EQ(ByteOf(queue.Get(kLong).value()), 'c');
                   auto message = queue.Get(kLong);
                   if (message.ok() && ByteOf(*message) == 'v') {
                     ++whole;
                     message = queue.Get(kLong);
                   } else if (KindOf(message.status()) == ErrorKind::kNetwork) {
                     ++lost;
                     EXPECT_THAT(std::string(message.status().message()), HasSubstr("with pid "));
                     EXPECT_EQ(queue.stats().lost_puts, 1);
                     message = queue.Get(kLong);
                   } else {
                     ++never;
                     EXPECT_FALSE(victim.has_finished());
                   }
                   EXPECT_EQ(ByteOf(message.value()), 'e');
                 });
  EXPECT_TRUE(IsSkipped() || (whole > 0 && lost > 0 && never > 0)) << whole << lost << never;
}

TEST(QueueCrashTest, AConsumerMayDieAtAnyInstruction) {
  int kept = 0, gone = 0;
  KillAtEachStep([](TensorQueue& queue) { queue.Get(kLong).IgnoreError(); },
                 [&](TensorQueue& queue, const Victim& victim) {
                   ASSERT_TRUE(Put(queue, 'e', 2900).ok());
                   const char first = ByteOf(queue.Get(kLong).value());
                   if (first == 'c') {
                     ++kept;
                     EXPECT_FALSE(victim.has_finished());
                     EXPECT_EQ(ByteOf(queue.Get(kLong).value()), 'e');
                   } else {
                     ++gone;
                     EXPECT_EQ(first, 'e');
                   }
                 });
  EXPECT_TRUE(IsSkipped() || (kept > 0 && gone > 0)) << kept << gone;
}

TEST(QueueCrashTest, WhoClosesMayDieAtAnyInstruction) {
  KillAtEachStep([](TensorQueue& queue) { queue.Close().IgnoreError(); },
                 [&](TensorQueue& queue, const Victim& victim) {
                   EXPECT_EQ(ByteOf(queue.Get(kLong).value()), 'c');
                   EXPECT_TRUE(queue.is_closed() || !victim.has_finished());
                   if (!queue.is_closed()) return;
                   EXPECT_TRUE(IsEndOfQueue(queue.Get(kLong).status()));
                 });
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--stride=")) {
      if (!absl::SimpleAtoi(argument, &syncline::stride)) return 2;
    }
  }
  return RUN_ALL_TESTS();
}
