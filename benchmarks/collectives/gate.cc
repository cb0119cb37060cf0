#include "benchmarks/collectives/gate.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace syncline::benchmarks {
namespace {

constexpr int64_t kDeadlineNs = 60'000'000'000;
constexpr int kSpinsBetweenLooks = 1024;  // At the clock and at whether a rank has given up.
constexpr int64_t kHeaderBytes = 4096;

// What it takes for the news that all have come to reach every core, and some more.
constexpr int64_t kLeadNs = 1000;

// After these, about 20 us, whoever waits gives way at every spin: a system may have threads of its
// own that need the core to let the last rank come.
constexpr int kPolitenessAfter = 500;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

struct Gate::Shared {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> passages;
  alignas(64) std::atomic<int64_t> start_ns;
  alignas(64) std::atomic<uint32_t> given_up;
};

Gate* Gate::Open(const char* path, int size, Waiting waiting) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  const int64_t bytes = kHeaderBytes + int64_t{size} * kMostIterations * sizeof(int64_t);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : new Gate(memory, bytes, size, waiting);
}

Gate::Gate(void* memory, int64_t bytes, int size, Waiting waiting)
    : shared_(static_cast<Shared*>(memory)), bytes_(bytes), size_(size), waiting_(waiting) {}

Gate::~Gate() { munmap(shared_, bytes_); }

bool Gate::Pass() {
  const uint32_t passages = shared_->passages.load(std::memory_order_acquire);
  if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    shared_->arrived.store(0, std::memory_order_relaxed);
    shared_->start_ns.store(NowNs() + kLeadNs, std::memory_order_relaxed);
    shared_->passages.store(passages + 1, std::memory_order_release);
  } else if (!WaitForPassage(passages)) {
    return false;
  }
  const int64_t start_ns = shared_->start_ns.load(std::memory_order_relaxed);
  while (NowNs() < start_ns) {
  }
  return shared_->given_up.load(std::memory_order_relaxed) == 0;
}

bool Gate::WaitForPassage(uint32_t passages) const {
  const int64_t deadline = NowNs() + kDeadlineNs;
  for (int spins = 1; shared_->passages.load(std::memory_order_acquire) == passages; ++spins) {
    if (waiting_ == Waiting::kYield || spins > kPolitenessAfter) {
      sched_yield();
    } else {
      Pause();
    }
    if (spins % kSpinsBetweenLooks != 0) continue;
    if (shared_->given_up.load(std::memory_order_relaxed) != 0 || NowNs() > deadline) return false;
  }
  return true;
}

void Gate::GiveUp() { shared_->given_up.store(1, std::memory_order_relaxed); }

int64_t* Gate::Durations(int rank) const {
  char* const memory = reinterpret_cast<char*>(shared_);
  return reinterpret_cast<int64_t*>(memory + kHeaderBytes) + int64_t{rank} * kMostIterations;
}

}  // namespace syncline::benchmarks
