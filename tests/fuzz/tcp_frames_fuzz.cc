// What a peer sends on the connection of backend tcp for messages, while this rank sends and
// receives itself.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "backends/tcp/point_to_point.h"
#include "backends/tcp/thresholds.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/collective.h"
#include "syncline/tensor.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

constexpr int kMostSteps = 48;
// Of a request that may bring all of them, and of one that may not.
constexpr int64_t kLongElements = tcp::kEagerBytes / sizeof(float) + 1;
constexpr int64_t kVeryLongElements = tcp::kMaxFirstBytes / sizeof(float) + 1;

// As PointToPoint's own, which is private. A wrong copy makes worse inputs, no wrong test.
enum Kind : uint32_t { kEager = 1, kRequest, kGrant, kElements, kCredit, kLeave };
struct Header {
  uint32_t magic;
  uint32_t kind;
  uint64_t id, sequence;
  int64_t count, tag;
  uint32_t dtype, reserved;
  uint64_t bytes;
};

// A thread that runs one task after another: the one that waits in Send or Recv.
class Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}

  void Start(std::function<void()> task) {
    absl::MutexLock lock(&mutex_);
    task_ = std::move(task);
  }
  bool is_idle() {
    absl::MutexLock lock(&mutex_);
    return task_ == nullptr;
  }
  void AwaitIdle() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](Worker* worker) ABSL_NO_THREAD_SAFETY_ANALYSIS { return worker->task_ == nullptr; },
        this));
  }

 private:
  void Loop() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      mutex_.Await(absl::Condition(
          +[](Worker* worker) ABSL_NO_THREAD_SAFETY_ANALYSIS { return worker->task_ != nullptr; },
          this));
      const std::function<void()> task = task_;
      mutex_.Unlock();
      task();
      mutex_.Lock();
      task_ = nullptr;
    }
  }

  absl::Mutex mutex_;
  std::function<void()> task_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

Worker& TheWorker() {
  static Worker* const worker = new Worker;
  return *worker;
}

// Runs a call of this rank, which ends when its connections do.
template <typename Body>
auto Run(const Collective& collective, Body body) {
  CallContext context;
  context.collective = &collective;
  context.deadline = Deadline(absl::Minutes(1));
  return body(context);
}

// Rank 0, and what its peers have of it.
class Rank {
 public:
  Rank()
      : messages_(Peers(), std::move(connections_.own),
                  base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}
  ~Rank() {
    messages_.Abort();
    TheWorker().AwaitIdle();
    messages_.ReadAll();
    for (const auto& [rank, reason] : messages_.left()) {
      Require(rank > 0 && rank < kRanks && reason.size() < 256, "a reason is short");
    }
    messages_.Close();
  }

  tcp::PointToPoint& messages() { return messages_; }
  const base::UniqueFd& end_of(int peer) const { return connections_.others[peer]; }

  void Recv(int src, int64_t tag, int64_t count) {
    TheWorker().Start([this, src, tag, count] {
      const Tensor tensor = Tensor::Zeros(DType::kFloat32, {count});
      const auto from = Run(Collective::Recv(tensor, src, tag), [&](const CallContext& context) {
        return messages_.Recv(tensor, context);
      });
      if (from.ok()) Require(*from > 0 && *from < kRanks, "a message has a sender");
    });
  }
  void Send(int dst, int64_t count) {
    TheWorker().Start([this, dst, count] {
      const Tensor tensor = Tensor::Zeros(DType::kFloat32, {count});
      Run(Collective::Send(tensor, dst, 0), [&](const CallContext& context) {
        return messages_.Send(tensor, context);
      }).IgnoreError();
    });
  }

 private:
  Connections connections_;
  tcp::PointToPoint messages_;
};

// A frame that a rank sends, from which others are made: it has the number by which frames begin.
const Header& Example() {
  static const Header example = [] {
    Rank rank;
    rank.Send(1, 1);
    TheWorker().AwaitIdle();
    const std::string frame = ReadAll(rank.end_of(1));
    Header header;
    Require(frame.size() == sizeof(header) + sizeof(float), "this knows the header");
    std::memcpy(&header, frame.data(), sizeof(header));
    return header;
  }();
  return example;
}

std::string Frame(uint32_t kind, uint64_t id, int64_t count, int64_t tag, uint32_t dtype,
                  uint64_t bytes) {
  Header header = Example();
  header.kind = kind;
  header.id = id;
  header.count = count;
  header.tag = tag;
  header.dtype = dtype;
  header.bytes = bytes;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

// Gives the elements that rank 0 asks for, if it does soon.
void AnswerGrant(Rank& rank, int peer, int changes, int64_t count) {
  if (TheWorker().is_idle()) return;
  pollfd entry = {rank.end_of(peer).get(), POLLIN, 0};
  poll(&entry, 1, 1);
  const std::string frames = ReadAll(rank.end_of(peer));
  Header header;
  for (size_t at = 0; at + sizeof(header) <= frames.size(); at += sizeof(header)) {
    std::memcpy(&header, frames.data() + at, sizeof(header));
    if (header.kind != kGrant) continue;
    // A request may have brought the first bytes.
    const size_t first = (changes & 4) != 0 ? tcp::kEagerBytes : 0;
    const size_t bytes = std::max(static_cast<size_t>(count) * sizeof(float), first) - first;
    Write(rank.end_of(peer), Frame(kElements, header.id, 0, 0, 0, bytes + (changes & 1)));
    Write(rank.end_of(peer), std::string((changes & 2) != 0 ? bytes / 2 : bytes, 'e'));
  }
}

size_t BytesOf(int choice) {
  if (choice == 255) return tcp::kEagerBytes;
  return choice == 254 ? kLongElements * sizeof(float) : choice;
}

int64_t CountOf(int choice) {
  if (choice == 7) return kVeryLongElements;
  return choice == 0 ? kLongElements : choice - 1;
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  Rank rank;
  for (int step = 0; step < kMostSteps && !reader.is_empty(); ++step) {
    const int what = reader.Below(8), peer = 1 + reader.Below(kRanks - 1);
    switch (what) {
      case 0:
        Write(rank.end_of(peer), reader.Text());
        break;
      case 1: {
        const uint32_t kind = reader.Byte();
        const uint64_t id = reader.Byte();
        const int64_t count = static_cast<int8_t>(reader.Byte());
        const int tag = reader.Below(4);
        const uint32_t dtype = reader.Byte();
        const size_t bytes = BytesOf(reader.Byte());
        Write(rank.end_of(peer),
              Frame(kind, id, count < 0 ? CountOf(count == -1 ? 0 : 7) : count, tag, dtype, bytes));
        Write(rank.end_of(peer), std::string(BytesOf(reader.Byte()), 'b'));
        break;
      }
      case 2:
        if (!TheWorker().is_idle()) break;
        {
          const int src = reader.Below(2) == 0 ? kAnySource : peer, tag = reader.Below(4);
          rank.Recv(src, tag, CountOf(reader.Below(8)));
        }
        break;
      case 3:
        if (TheWorker().is_idle()) rank.Send(peer, CountOf(reader.Below(8)));
        break;
      case 4: {
        const int changes = reader.Below(8);
        AnswerGrant(rank, peer, changes, CountOf(reader.Below(8)));
        break;
      }
      case 5:
        rank.messages().ReadAll();
        break;
      case 6:
        ReadAll(rank.end_of(peer));
        break;
      default:
        shutdown(rank.end_of(peer).get(), SHUT_WR);
        break;
    }
  }
}

std::vector<std::string> Seeds() {
  const auto float32 = static_cast<char>(DType::kFloat32);
  const std::string read = {5, 0};
  // An eager message of one element with tag 1, and its receive.
  const std::string eager = {1, 0, kEager, 1, 1, 1, float32, 4, 4};
  const std::string receive = {2, 0, 1, 1, 2};
  // A request of many elements, its receive, and the answer to the grant.
  const std::string request = {1, 0, kRequest, 1, -1, 1, float32, 0, 0};
  const std::string first = {1, 0, kRequest, 1, -1, 1, float32, -1, -1};
  const std::string whole = {1, 0, kRequest, 1, -1, 1, float32, -2, -2};
  const std::string receive_long = {2, 0, 1, 1, 0}, answer = {4, 0, 0, 0};
  const std::string send_long = {3, 0, 0}, grant = {1, 0, kGrant, 1, 0, 0, 0, 0, 0};
  const std::string credit = {1, 0, kCredit, 0, 0, 0, 0, 0, 0};
  const std::string leave = {1, 0, kLeave, 0, 0, 0, 0, 3, 3};
  std::vector<std::string> seeds = {
      eager + read + receive,
      receive + eager,
      receive_long + request + answer,
      request + read + receive_long + answer,
      receive_long + first + std::string({4, 0, 4, 0}),
      first + read + receive_long + std::string({4, 0, 4, 0}),
      receive_long + whole,
      whole + read + receive_long,
      whole + read + receive_long + std::string({4, 0, 4, 0}),
      send_long + grant + read,
      std::string({3, 0, 7}) + grant + read,
      std::string({2, 0, 1, 1, 7, 1, 0, kRequest, 1, -3, 1, float32, -1, -1, 4, 0, 4, 7}),
      std::string({3, 0, 2}) + credit + read,
      eager + leave + read + receive,
      request + read + receive_long + std::string({4, 0, 1, 0}),
      request + read + receive_long + std::string({4, 0, 2, 0, 7, 0}),
  };
  // The bytes themselves.
  std::string raw = {0, 0};
  raw += Text(Frame(kEager, 1, 1, 1, static_cast<uint32_t>(DType::kFloat32), 4) + "abcd");
  seeds.push_back(raw + read + receive);
  return seeds;
}

}  // namespace syncline::fuzz
