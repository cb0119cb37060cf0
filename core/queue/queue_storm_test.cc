// Producers and consumers, each a process, that are killed and stopped at random moments.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/status.h"
#include "syncline/tensor_queue.h"

namespace syncline {
namespace {

int kills = 60;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr size_t kMostEntries = size_t{1} << 24;
constexpr int kMostProcesses = 4096;

// What the processes write down, in memory that all share. Processes are numbered, and each number
// is used once.
struct Journal {
  std::atomic<uint32_t> stop;
  std::atomic<uint32_t> errors;
  char error[256];
  // Messages whose put has returned, by producer.
  std::atomic<uint64_t> put[kMostProcesses];
  std::atomic<uint64_t> entries;
  // Received messages: consumer, producer, number. 0: its consumer died before it wrote it down.
  std::atomic<uint64_t> received[kMostEntries];

  void Fail(absl::string_view text) {
    if (errors.fetch_add(1) == 0) {
      std::memcpy(error, text.data(), std::min(text.size(), sizeof(error) - 1));
    }
  }
};

Journal* NewJournal() {
  void* const memory = mmap(nullptr, sizeof(Journal), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Journal*>(memory);
}

uint64_t Word(uint64_t producer, uint64_t number, uint64_t i) {
  uint64_t x = producer << 40 ^ number << 20 ^ i;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return x ^ x >> 27;
}

// Fills or checks message `number` of `producer`: two tensors of sizes that depend on these.
std::vector<std::vector<uint64_t>> Content(uint64_t producer, uint64_t number, size_t most_words) {
  const uint64_t random = Word(producer, number, 1 << 20);
  // Mostly short ones; now and then one of half the capacity.
  const size_t most = random % 16 == 0 ? most_words / 2 : most_words / 64;
  std::vector<std::vector<uint64_t>> tensors(2);
  tensors[0].resize(random / 16 % most + 1);
  tensors[1].resize(random / 65536 % 9);
  uint64_t i = 0;
  for (auto& tensor : tensors) {
    for (uint64_t& word : tensor) word = Word(producer, number, i++);
  }
  return tensors;
}

Tensor TensorOf(std::vector<uint64_t>& words) {
  return Tensor(words.data(), DType::kUInt64, {static_cast<int64_t>(words.size())});
}

int Produce(TensorQueue& queue, Journal& journal, int self) {
  for (uint64_t number = 0; journal.stop.load() == 0; ++number) {
    auto content = Content(self, number, queue.capacity() / 8);
    const absl::Status status = queue.Put({TensorOf(content[0]), TensorOf(content[1])},
                                          absl::StrCat(self, " ", number), kTimeout);
    if (!status.ok()) {
      journal.Fail(absl::StrCat("put: ", status.message()));
      return 1;
    }
    journal.put[self].fetch_add(1);
  }
  return 0;
}

int Consume(TensorQueue& queue, Journal& journal, int self) {
  while (true) {
    const absl::StatusOr<TensorQueue::Message> message = queue.Get(kTimeout);
    if (IsEndOfQueue(message.status())) return 0;
    if (KindOf(message.status()) == ErrorKind::kNetwork && !message.ok()) continue;
    if (!message.ok()) {
      journal.Fail(absl::StrCat("get: ", message.status().message()));
      return 1;
    }
    uint64_t producer = 0, number = 0;
    const std::vector<std::string> words = absl::StrSplit(message->note, ' ');
    bool is_whole = words.size() == 2 && absl::SimpleAtoi(words[0], &producer) &&
                    absl::SimpleAtoi(words[1], &number) && message->tensors.size() == 2;
    if (is_whole) {
      const auto content = Content(producer, number, queue.capacity() / 8);
      for (size_t i = 0; i < 2; ++i) {
        const Tensor& tensor = message->tensors[i];
        is_whole = is_whole && tensor.nbytes() == content[i].size() * 8 &&
                   (tensor.nbytes() == 0 ||
                    std::memcmp(tensor.data(), content[i].data(), tensor.nbytes()) == 0);
      }
    }
    if (!is_whole) {
      journal.Fail(absl::StrCat("a message is torn: ", message->note));
      return 1;
    }
    const uint64_t at = journal.entries.fetch_add(1);
    if (at >= kMostEntries) return 1;
    journal.received[at] = static_cast<uint64_t>(self) << 48 | producer << 32 | (number + 1);
  }
}

struct Process {
  pid_t pid;
  int number;
  bool is_producer;
};

class Storm {
 public:
  Storm(int producers, int consumers, size_t capacity, int seed)
      : journal_(NewJournal()), queue_(TensorQueue::Create({capacity, 0}).value()), random_(seed) {
    for (int i = 0; i < producers; ++i) processes_.push_back(Start(true));
    for (int i = 0; i < consumers; ++i) processes_.push_back(Start(false));
  }
  ~Storm() {
    for (const Process& process : processes_) {
      kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
    }
    munmap(journal_, sizeof(Journal));
  }

  // Kills one of the processes, or stops it for a moment.
  void Strike() {
    absl::SleepFor(absl::Microseconds(Random(8000)));
    Process& victim = processes_[Random(processes_.size())];
    if (Random(4) == 0) {
      kill(victim.pid, SIGSTOP);
      absl::SleepFor(absl::Microseconds(Random(2000)));
      kill(victim.pid, SIGCONT);
    }
    kill(victim.pid, SIGKILL);
    ++(victim.is_producer ? killed_producers_ : killed_consumers_);
    if (Random(2) == 0) absl::SleepFor(absl::Microseconds(Random(20000)));  // As a zombie.
    int status = 0;
    waitpid(victim.pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << journal_->error;
    victim = Start(victim.is_producer);
  }

  // Lets all that live finish, and checks what they wrote down.
  void End() {
    journal_->stop = 1;
    Join(true);
    ASSERT_TRUE(queue_->Close().ok());
    Join(false);
    EXPECT_EQ(journal_->errors.load(), 0u) << journal_->error;
    const TensorQueue::Stats stats = queue_->stats();
    EXPECT_EQ(stats.messages, 0);
    EXPECT_LE(stats.lost_puts, killed_producers_);
    EXPECT_LE(stats.lost_gets, killed_consumers_);
    CheckReceived();
  }

 private:
  int64_t Random(int64_t below) { return static_cast<int64_t>(random_() % below); }

  Process Start(bool is_producer) {
    const int number = next_number_++;
    const pid_t pid = fork();
    if (pid == 0) {
      _exit(is_producer ? Produce(*queue_, *journal_, number)
                        : Consume(*queue_, *journal_, number));
    }
    return {pid, number, is_producer};
  }

  // Waits for the processes of a kind to end.
  void Join(bool producers) {
    const Deadline deadline(kTimeout);
    for (Process& process : processes_) {
      if (process.is_producer != producers) continue;
      int status = 0;
      while (waitpid(process.pid, &status, WNOHANG) == 0 && !deadline.Expired()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_FALSE(deadline.Expired()) << "process " << process.number << " hangs";
      EXPECT_TRUE(deadline.Expired() || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    }
    if (deadline.Expired()) return;
    processes_.erase(std::remove_if(processes_.begin(), processes_.end(),
                                    [&](const Process& p) { return p.is_producer == producers; }),
                     processes_.end());
  }

  void CheckReceived() {
    const size_t entries = journal_->entries.load();
    ASSERT_LT(entries, kMostEntries);
    std::vector<uint64_t> messages;
    std::map<uint64_t, uint64_t> last;  // Of a consumer and a producer.
    for (size_t i = 0; i < entries; ++i) {
      const uint64_t entry = journal_->received[i].load();
      if (entry == 0) continue;
      uint64_t& before = last[entry >> 32];
      ASSERT_GT(entry & UINT32_MAX, before) << "out of order";
      before = entry & UINT32_MAX;
      messages.push_back(entry << 16 >> 16);
    }
    std::sort(messages.begin(), messages.end());
    EXPECT_EQ(std::adjacent_find(messages.begin(), messages.end()), messages.end())
        << "a message was received twice";
    int64_t put = 0;
    for (int i = 0; i < next_number_; ++i) put += journal_->put[i].load();
    const int64_t missing = put - static_cast<int64_t>(messages.size());
    // A consumer that is killed has at most one message; a producer may have put one more than it
    // wrote down.
    EXPECT_LE(missing, killed_consumers_);
    EXPECT_GE(missing, -killed_producers_);
    EXPECT_GT(messages.size(), 100u);
    std::printf("%zu messages, %d producers and %d consumers killed, %lld missing\n",
                messages.size(), killed_producers_, killed_consumers_,
                static_cast<long long>(missing));
  }

  Journal* const journal_;
  const std::shared_ptr<TensorQueue> queue_;
  std::mt19937_64 random_;
  std::vector<Process> processes_;
  int next_number_ = 1;
  int killed_producers_ = 0;
  int killed_consumers_ = 0;
};

class QueueStormTest : public testing::TestWithParam<int> {};

TEST_P(QueueStormTest, KilledProcessesHangNobodyAndTearNothing) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  constexpr int kShapes[][2] = {{1, 1}, {3, 1}, {1, 3}, {3, 2}, {4, 4}};
  const int seed = GetParam();
  {
    const auto& shape = kShapes[seed % std::size(kShapes)];
    Storm storm(shape[0], shape[1], seed % 2 == 0 ? 16 << 10 : 256 << 10, seed);
    for (int i = 0; i < kills / 5 && !HasFailure(); ++i) storm.Strike();
    storm.End();
  }
  EXPECT_EQ(descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Seeds, QueueStormTest, testing::Range(0, 5));

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--kills=")) {
      if (!absl::SimpleAtoi(argument, &syncline::kills)) return 2;
    }
  }
  return RUN_ALL_TESTS();
}
