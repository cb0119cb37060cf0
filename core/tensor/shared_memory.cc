#include "syncline/shared_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor/segment_pool.h"
#include "core/tensor/shared_place.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

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

// Mappings of leased segments that this process is done with: their sender writes to them again,
// and mapping one again costs more than that. The last 16, of 64 MiB together. Of the process.
class IdleMappings {
 public:
  static IdleMappings& Get() {
    static IdleMappings* const all = new IdleMappings;
    return *all;
  }

  void Keep(Segment segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_ += segment.size();
    segments_.push_back(std::move(segment));
    while (segments_.size() > kMostSegments || bytes_ > kMostBytes) {
      bytes_ -= segments_.front().size();
      segments_.erase(segments_.begin());
    }
  }

  void FreeAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    segments_.clear();
    bytes_ = 0;
  }

  size_t count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return segments_.size();
  }

  // Nothing if it is not there.
  std::optional<Segment> Take(const Segment::Identity& identity, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = segments_.begin(); it != segments_.end(); ++it) {
      if (it->size() != size || !(it->identity() == identity)) continue;
      Segment found = std::move(*it);
      segments_.erase(it);
      bytes_ -= size;
      return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kMostSegments = 16;
  static constexpr size_t kMostBytes = 64 << 20;

  IdleMappings() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] {
                     Get().segments_.clear();
                     Get().bytes_ = 0;
                     Get().mutex_.unlock();
                   });
  }

  std::mutex mutex_;               // Of a kind that a fork may find locked. Guards all below.
  std::vector<Segment> segments_;  // The oldest first.
  size_t bytes_ = 0;
};

// Of one tensor. Enters itself in the registry, and leaves it.
class Memory {
 public:
  enum class Origin { kMadeHere, kHandedOver, kLeased };
  // Of memory that has a name, and then no descriptor.
  struct Named {
    std::string name;
    std::shared_ptr<void> keeper;
  };

  Memory(Segment segment, AfterFork after_fork, Origin origin, Named named);
  ~Memory();

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return segment_.data(); }
  size_t size() const { return segment_.size(); }
  uint64_t number() const { return number_; }
  const Segment::Identity& identity() const { return identity_; }
  // Replaces the mapping, in a child, which is no longer shared.
  void Separate() const {
    is_shared_.store(false, std::memory_order_relaxed);
    mmap(data(), size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, segment_.descriptor(), 0);
  }
  void KeepContents() const { is_handed_on_.store(true, std::memory_order_relaxed); }
  bool has_name() const { return !named_.name.empty(); }
  NamedPlace NamedPlaceAt(size_t offset) const {
    return {named_.name, offset, segment_.size(), named_.keeper};
  }
  bool is_shared() const { return is_shared_.load(std::memory_order_relaxed); }
  SharedPlace PlaceAt(size_t offset) const {
    return {number_, offset, segment_.descriptor(), segment_.size(), identity_};
  }

 private:
  Segment segment_;
  const Segment::Identity identity_;
  const AfterFork after_fork_;
  const int forks_;
  const uint64_t number_;
  const Origin origin_;
  const Named named_;
  mutable std::atomic<bool> is_handed_on_{false};  // Other processes may use the contents.
  mutable std::atomic<bool> is_shared_{true};
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

  void Add(const std::shared_ptr<const Memory>& memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    by_address_[memory->data()] = memory.get();
    by_identity_[Key(memory->identity())] = memory;
    numbers_.insert(memory->number());
    count_.fetch_add(1, std::memory_order_relaxed);
  }

  // How often this process, and those above it, have forked: parent and child count.
  int forks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return forks_;
  }

  // Returns forks(). A fork that has copied the mapping of `memory` has been counted: the count
  // changes while fork() holds the mutex.
  int Remove(const Memory& memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    by_address_.erase(memory.data());
    // Another thread may have mapped the segment again meanwhile.
    const auto found = by_identity_.find(Key(memory.identity()));
    if (found != by_identity_.end() && found->second.expired()) by_identity_.erase(found);
    numbers_.erase(memory.number());
    count_.fetch_sub(1, std::memory_order_relaxed);
    freed_.fetch_add(1);
    return forks_;
  }

  std::optional<SharedPlace> Find(const char* data, size_t bytes) {
    if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Memory* const memory = Holding(data, bytes);
    if (memory == nullptr || !memory->is_shared() || memory->has_name()) return std::nullopt;
    return memory->PlaceAt(static_cast<size_t>(data - memory->data()));
  }

  std::optional<NamedPlace> FindNamed(const char* data, size_t bytes) {
    if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Memory* const memory = Holding(data, bytes);
    if (memory == nullptr || !memory->is_shared() || !memory->has_name()) return std::nullopt;
    return memory->NamedPlaceAt(static_cast<size_t>(data - memory->data()));
  }

  // Null if none is mapped and shared.
  std::shared_ptr<const Memory> Find(const Segment::Identity& identity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_identity_.find(Key(identity));
    std::shared_ptr<const Memory> memory =
        found == by_identity_.end() ? nullptr : found->second.lock();
    return memory != nullptr && memory->is_shared() ? memory : nullptr;
  }

  void KeepContents(const char* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Memory* const memory = Holding(data, 1);
    if (memory != nullptr) memory->KeepContents();
  }

  bool Has(uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return numbers_.count(number) != 0;
  }

 private:
  SharedMemories() {
    static const auto count_and_unlock = [] {
      ++Get().forks_;
      Get().mutex_.unlock();
    };
    pthread_atfork([] { Get().mutex_.lock(); }, count_and_unlock, count_and_unlock);
  }

  static std::pair<uint64_t, uint64_t> Key(const Segment::Identity& identity) {
    return {identity.device, identity.inode};
  }

  // Null if no memory holds all of the bytes. Under the mutex.
  const Memory* Holding(const char* data, size_t bytes) const {
    const auto after = by_address_.upper_bound(data);
    if (after == by_address_.begin()) return nullptr;
    const Memory& memory = *std::prev(after)->second;
    const auto offset = static_cast<size_t>(data - memory.data());
    if (offset > memory.size() || bytes > memory.size() - offset) return nullptr;
    return &memory;
  }

  std::atomic<uint64_t> last_{0}, freed_{0};
  std::atomic<int64_t> count_{0};
  // Guards all below. Of a kind that a fork may find locked. No Memory ends under it, since its end
  // takes it.
  std::mutex mutex_;
  int forks_ = 0;
  std::map<const char*, const Memory*> by_address_;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<const Memory>> by_identity_;
  std::set<uint64_t> numbers_;
};

Memory::Memory(Segment segment, AfterFork after_fork, Origin origin, Named named)
    : segment_(std::move(segment)),
      identity_(segment_.identity()),
      after_fork_(after_fork),
      forks_(SharedMemories::Get().forks()),
      number_(SharedMemories::Get().NewNumber()),
      origin_(origin),
      named_(std::move(named)) {
  if (has_name()) segment_.CloseDescriptor();
  if (after_fork_ == AfterFork::kOwn) OwnAfterFork::Get().Add(this);
}

std::shared_ptr<const Memory> NewMemory(Segment segment, AfterFork after_fork,
                                        Memory::Origin origin, Memory::Named named = {}) {
  auto memory =
      std::make_shared<const Memory>(std::move(segment), after_fork, origin, std::move(named));
  SharedMemories::Get().Add(memory);
  return memory;
}

Memory::~Memory() {
  if (after_fork_ == AfterFork::kOwn) OwnAfterFork::Get().Remove(this);
  const int forks = SharedMemories::Get().Remove(*this);
  // Peers unmap it when they next hear of this rank; the memory is free at once. Not where a fork,
  // or handing it over, may have given it another user.
  if (forks_ != forks || is_handed_on_.load(std::memory_order_relaxed)) return;
  if (origin_ == Origin::kMadeHere) segment_.Discard();
  if (origin_ == Origin::kLeased) {
    ReleaseLease(segment_.data(), segment_.size());
    IdleMappings::Get().Keep(std::move(segment_));
  }
}

Tensor AllBytesOf(const std::shared_ptr<const Memory>& memory) {
  return Tensor(memory->data(), DType::kUInt8, {static_cast<int64_t>(memory->size())}, {}, Device(),
                std::const_pointer_cast<Memory>(memory));
}

}  // namespace

std::optional<SharedPlace> FindShared(const void* data, size_t bytes) {
  return SharedMemories::Get().Find(static_cast<const char*>(data), bytes);
}

std::optional<NamedPlace> FindNamed(const void* data, size_t bytes) {
  return SharedMemories::Get().FindNamed(static_cast<const char*>(data), bytes);
}

void KeepContents(const void* data) {
  SharedMemories::Get().KeepContents(static_cast<const char*>(data));
}

absl::StatusOr<Tensor> MapShared(int descriptor, size_t size, LeaseKind lease) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) {
    return BackendError(absl::StrCat("descriptor ", descriptor, " of shared memory is not open"));
  }
  std::shared_ptr<const Memory> memory =
      SharedMemories::Get().Find(Segment::Identity{status.st_dev, status.st_ino});
  if (memory != nullptr) {
    close(descriptor);
    if (memory->size() < size) return BackendError("shared memory is smaller than its sender says");
  } else {
    std::optional<Segment> segment;
    if (lease != LeaseKind::kNone) {
      segment = IdleMappings::Get().Take(Segment::Identity{status.st_dev, status.st_ino}, size);
    }
    if (segment.has_value()) {
      close(descriptor);
    } else {
      SYNCLINE_ASSIGN_OR_RETURN(segment, Segment::Map(descriptor, size));
    }
    memory = NewMemory(
        *std::move(segment), AfterFork::kShared,
        lease == LeaseKind::kNone ? Memory::Origin::kHandedOver : Memory::Origin::kLeased);
  }
  return AllBytesOf(memory);
}

absl::StatusOr<Tensor> MapNamed(std::string name, int descriptor, size_t size,
                                std::shared_ptr<void> keeper) {
  SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Segment::MapUnsealed(descriptor, size));
  std::shared_ptr<const Memory> memory = SharedMemories::Get().Find(segment.identity());
  if (memory == nullptr || memory->size() < size) {
    memory = NewMemory(std::move(segment), AfterFork::kShared, Memory::Origin::kHandedOver,
                       {std::move(name), std::move(keeper)});
  }
  return AllBytesOf(memory);
}

bool IsShared(uint64_t memory) { return SharedMemories::Get().Has(memory); }

void FreeIdleMappings() { IdleMappings::Get().FreeAll(); }

size_t IdleMappingCount() { return IdleMappings::Get().count(); }

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
  const std::shared_ptr<const tensor::Memory> memory =
      tensor::NewMemory(*std::move(segment), after_fork, tensor::Memory::Origin::kMadeHere);
  return Tensor(memory->data(), dtype, shape, {}, Device(),
                std::const_pointer_cast<tensor::Memory>(memory));
}

}  // namespace syncline
