#include "syncline/shared_memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "core/tensor/shared_place.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

// How often this process, and those above it, have forked: parent and child count.
int Forks() {
  static std::atomic<int> forks{0};
  static const auto count = [] { forks.fetch_add(1); };
  static const int registered = pthread_atfork(nullptr, count, count);
  static_cast<void>(registered);
  return forks.load();
}

class Memory;

// Memories of which a child of fork gets its own. Of the process.
class OwnAfterFork {
 public:
  static OwnAfterFork& Get() {
    static OwnAfterFork* const all = new OwnAfterFork;
    return *all;
  }

  void Add(const Memory* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_.insert(memory);
  }
  void Remove(const Memory* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_.erase(memory);
  }

 private:
  OwnAfterFork() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] {
                     Get().SeparateAll();
                     Get().mutex_.unlock();
                   });
  }

  void SeparateAll();

  std::mutex mutex_;  // Of a kind that a fork may find locked.
  std::set<const Memory*> memories_;
};

// Of one tensor. Enters itself in the registry, and leaves it.
class Memory {
 public:
  Memory(Segment segment, AfterFork after_fork);
  ~Memory();

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return segment_.data(); }
  size_t size() const { return segment_.size(); }
  uint64_t number() const { return number_; }
  // Replaces the mapping, in a child.
  void Separate() const {
    mmap(data(), size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, segment_.descriptor(), 0);
  }
  SharedPlace PlaceAt(size_t offset) const {
    return {number_, offset, segment_.descriptor(), segment_.size(), identity_};
  }

 private:
  Segment segment_;
  const Segment::Identity identity_;
  const AfterFork after_fork_;
  const int forks_ = Forks();
  const uint64_t number_;
};

void OwnAfterFork::SeparateAll() {
  for (const Memory* memory : memories_) memory->Separate();
}

// Of the process.
class SharedMemories {
 public:
  static SharedMemories& Get() {
    static SharedMemories* const registry =
        new SharedMemories;  // Tensors may outlive what is static.
    return *registry;
  }

  uint64_t NewNumber() { return last_.fetch_add(1) + 1; }
  uint64_t freed() const { return freed_.load(); }

  void Add(const Memory& memory) {
    absl::MutexLock lock(&mutex_);
    by_address_[memory.data()] = &memory;
    numbers_.insert(memory.number());
    count_.fetch_add(1, std::memory_order_relaxed);
  }

  void Remove(const Memory& memory) {
    absl::MutexLock lock(&mutex_);
    by_address_.erase(memory.data());
    numbers_.erase(memory.number());
    count_.fetch_sub(1, std::memory_order_relaxed);
    freed_.fetch_add(1);
  }

  std::optional<SharedPlace> Find(const char* data, size_t bytes) {
    if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    absl::MutexLock lock(&mutex_);
    auto after = by_address_.upper_bound(data);
    if (after == by_address_.begin()) return std::nullopt;
    const Memory& memory = *std::prev(after)->second;
    const auto offset = static_cast<size_t>(data - memory.data());
    if (offset > memory.size() || bytes > memory.size() - offset) return std::nullopt;
    return memory.PlaceAt(offset);
  }

  bool Has(uint64_t number) {
    absl::MutexLock lock(&mutex_);
    return numbers_.count(number) != 0;
  }

 private:
  std::atomic<uint64_t> last_{0}, freed_{0};
  std::atomic<int64_t> count_{0};
  absl::Mutex mutex_;
  std::map<const char*, const Memory*> by_address_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
};

Memory::Memory(Segment segment, AfterFork after_fork)
    : segment_(std::move(segment)),
      identity_(segment_.identity()),
      after_fork_(after_fork),
      number_(SharedMemories::Get().NewNumber()) {
  SharedMemories::Get().Add(*this);
  if (after_fork_ == AfterFork::kOwn) OwnAfterFork::Get().Add(this);
}

Memory::~Memory() {
  if (after_fork_ == AfterFork::kOwn) OwnAfterFork::Get().Remove(this);
  SharedMemories::Get().Remove(*this);
  // Peers unmap it when they next hear of this rank; the memory is free at once. Not where a fork
  // may have given it another user.
  if (forks_ == Forks()) segment_.Discard();
}

}  // namespace

std::optional<SharedPlace> FindShared(const void* data, size_t bytes) {
  return SharedMemories::Get().Find(static_cast<const char*>(data), bytes);
}

bool IsShared(uint64_t memory) { return SharedMemories::Get().Has(memory); }

uint64_t SharedMemoriesFreed() { return SharedMemories::Get().freed(); }

}  // namespace syncline::tensor

namespace syncline {

absl::StatusOr<Tensor> EmptyShared(DType dtype, absl::Span<const int64_t> shape,
                                   AfterFork after_fork) {
  SYNCLINE_RETURN_IF_ERROR(CheckShape(dtype, shape));
  const Tensor measure(nullptr, dtype, shape);
  if (measure.nbytes() == 0) return Tensor::TryZeros(dtype, shape);
  const auto annotated = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("a shared tensor ", Name(dtype), "[",
                                         absl::StrJoin(shape, ", "), "]"));
  };
  absl::StatusOr<tensor::Segment> segment = tensor::Segment::Create(measure.nbytes());
  if (!segment.ok()) return annotated(segment.status());
  SYNCLINE_RETURN_IF_ERROR(annotated(segment->Reserve(0, segment->size())));
  auto memory = std::make_shared<tensor::Memory>(*std::move(segment), after_fork);
  char* const data = memory->data();
  return Tensor(data, dtype, shape, {}, Device(), std::move(memory));
}

}  // namespace syncline
