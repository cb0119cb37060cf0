#include "core/tensor/segment_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "core/tensor/shared_place.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kMostSegments = 16;
constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kSmallest = 16 << 10;
constexpr size_t kLargest = 32 << 20;

using Lease = uint32_t;
constexpr Lease kFree = 0;
constexpr Lease kLeased = 1;

off_t LeaseAt(size_t leased_size) { return static_cast<off_t>(leased_size - kLine); }

// Of the process.
class SegmentPool {
 public:
  static SegmentPool& Get() {
    static SegmentPool* const pool = new SegmentPool;
    return *pool;
  }

  // A descriptor, the caller's, of a segment that nobody uses, leased; -1 if there is none.
  int Take(size_t leased_size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->size != leased_size || !IsFree(*entry)) continue;
      const int descriptor = Duplicate(entry->descriptor);
      if (descriptor < 0 || !SetLeased(*entry)) {
        if (descriptor >= 0) close(descriptor);
        return -1;
      }
      std::rotate(entry, entry + 1, entries_.end());  // The last one is the latest.
      return descriptor;
    }
    return -1;
  }

  // Gives up all segments. Those that are in use live on with their receivers.
  void GiveUpAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Clear();
  }

  // Keeps a segment for later, and gives up the oldest ones for it.
  void Keep(int descriptor, size_t leased_size) {
    const int own = Duplicate(descriptor);
    if (own < 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({own, leased_size});
    bytes_ += leased_size;
    while (entries_.size() > kMostSegments || bytes_ > kMostBytes) {
      close(entries_.front().descriptor);
      bytes_ -= entries_.front().size;
      entries_.erase(entries_.begin());
    }
  }

 private:
  struct Entry {
    int descriptor;
    size_t size;
  };

  // The parent and the child must not both write to a segment that either was done with.
  SegmentPool() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] {
                     Get().Clear();
                     Get().mutex_.unlock();
                   });
  }

  static int Duplicate(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); }
  static bool IsFree(const Entry& entry) {
    Lease lease = kLeased;
    return pread(entry.descriptor, &lease, sizeof lease, LeaseAt(entry.size)) == sizeof lease &&
           lease == kFree;
  }
  static bool SetLeased(const Entry& entry) {
    return pwrite(entry.descriptor, &kLeased, sizeof kLeased, LeaseAt(entry.size)) ==
           sizeof kLeased;
  }

  void Clear() {
    for (const Entry& entry : entries_) close(entry.descriptor);
    entries_.clear();
    bytes_ = 0;
  }

  std::mutex mutex_;            // Of a kind that a fork may find locked. Guards all below.
  std::vector<Entry> entries_;  // The oldest first.
  size_t bytes_ = 0;
};

}  // namespace

size_t LeasedSize(size_t size) { return (size + kLine - 1) / kLine * kLine + kLine; }

absl::StatusOr<int> WriteLeased(size_t size, absl::Span<const Segment::Part> parts) {
  const size_t leased_size = LeasedSize(size);
  const bool reusable = leased_size >= kSmallest && leased_size <= kLargest;
  // All bytes are written, those between the parts too: what lay there was another array's. The
  // lease is what it is in a segment that Take has returned.
  std::vector<Segment::Part> all(parts.begin(), parts.end());
  all.push_back({leased_size - kLine, {reinterpret_cast<const char*>(&kLeased), sizeof kLeased}});
  if (reusable) {
    const int descriptor = SegmentPool::Get().Take(leased_size);
    if (descriptor >= 0) {
      absl::Cleanup close_it = [&] { close(descriptor); };
      SYNCLINE_RETURN_IF_ERROR(Segment::Fill(descriptor, leased_size, all));
      std::move(close_it).Cancel();
      return descriptor;
    }
  }
  absl::StatusOr<int> descriptor = Segment::Write(leased_size, all);
  if (!descriptor.ok()) {  // For want of memory or descriptors, which the pool may hold.
    SegmentPool::Get().GiveUpAll();
    FreeIdleMappings();
    descriptor = Segment::Write(leased_size, all);
    SYNCLINE_RETURN_IF_ERROR(descriptor.status());
  }
  if (reusable) SegmentPool::Get().Keep(*descriptor, leased_size);
  return *descriptor;
}

void ReleaseLease(char* data, size_t leased_size) {
  // What was read through this mapping has been read before; pairs with the pread of IsFree.
  auto* const lease = reinterpret_cast<std::atomic<Lease>*>(data + leased_size - kLine);
  lease->store(kFree, std::memory_order_release);
}

}  // namespace syncline::tensor
