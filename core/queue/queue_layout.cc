#include "core/queue/queue_layout.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/process_state.h"
#include "core/tensor/copy_bytes.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::queue {
namespace {

constexpr size_t kMostCapacity = size_t{1} << 46;
constexpr size_t kMostSlots = size_t{1} << 20;
constexpr size_t kFewestSlots = kPage / sizeof(Slot);
constexpr size_t kDefaultMostSlots = size_t{1} << 16;
constexpr size_t kBytesPerSlot = 1024;

size_t NextPowerOfTwo(size_t n) {
  size_t power = 1;
  while (power < n) power *= 2;
  return power;
}

uint64_t HashOfPidNamespace() { return base::Fnv1a64(base::PidNamespace()); }

absl::Status CheckOptions(const TensorQueueOptions& options) {
  if (options.capacity == 0 || options.capacity > kMostCapacity) {
    return ArgumentError(absl::StrCat("a queue's capacity must be between 1 and ", kMostCapacity,
                                      " bytes, not ", options.capacity));
  }
  if (options.max_messages < 0 || options.max_messages > static_cast<int64_t>(kMostSlots)) {
    return ArgumentError(absl::StrCat("a queue's max_messages must be between 0 and ", kMostSlots,
                                      ", not ", options.max_messages));
  }
  return absl::OkStatus();
}

// Nothing of a segment is believed that could lead outside of it.
bool IsConsistent(const QueueHeader& header, size_t size) {
  const uint64_t slots = header.slot_count;
  return header.magic == kMagic && slots >= kFewestSlots && slots <= kMostSlots &&
         (slots & (slots - 1)) == 0 && header.capacity > 0 && header.capacity <= kMostCapacity &&
         header.capacity % kPage == 0 && header.max_messages > 0 && header.max_messages <= slots &&
         QueueLayout::RingOffset(slots) + header.capacity == size;
}

}  // namespace

absl::StatusOr<tensor::Segment> MakeQueueSegment(const TensorQueueOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  const size_t capacity = (options.capacity + kPage - 1) / kPage * kPage;
  const size_t max_messages =
      options.max_messages > 0
          ? static_cast<size_t>(options.max_messages)
          : std::min(std::max(NextPowerOfTwo(capacity / kBytesPerSlot), kFewestSlots),
                     kDefaultMostSlots);
  const size_t slot_count = std::max(NextPowerOfTwo(max_messages), kFewestSlots);
  const size_t size = QueueLayout::RingOffset(slot_count) + capacity;
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment, tensor::Segment::Create(size));
  SYNCLINE_RETURN_IF_ERROR(segment.Reserve(0, size));
  auto* const header = new (segment.data()) QueueHeader();
  header->capacity = capacity;
  header->slot_count = slot_count;
  header->max_messages = max_messages;
  header->pid_namespace = HashOfPidNamespace();
  SYNCLINE_RETURN_IF_ERROR(header->put_mutex.Init());
  SYNCLINE_RETURN_IF_ERROR(header->get_mutex.Init());
  header->magic = kMagic;
  return segment;
}

absl::StatusOr<tensor::Segment> MapQueueSegment(int descriptor) {
  const absl::Status no_queue =
      BackendError(absl::StrCat("descriptor ", descriptor, " is not that of a TensorQueue"));
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) return no_queue;
  const auto size = static_cast<size_t>(status.st_size);
  if (size < kHeaderSize || size > kMostCapacity + QueueLayout::RingOffset(kMostSlots)) {
    close(descriptor);
    return no_queue;
  }
  absl::StatusOr<tensor::Segment> segment = tensor::Segment::Map(descriptor, size);
  if (!segment.ok()) return no_queue;
  const auto& header = *reinterpret_cast<const QueueHeader*>(segment->data());
  if (!IsConsistent(header, size)) return no_queue;
  if (header.pid_namespace != HashOfPidNamespace()) {
    return BackendError(
        "the TensorQueue was made in another pid namespace (container), whose processes cannot be "
        "watched from here");
  }
  return segment;
}

void QueueLayout::CopyIn(uint64_t position, const void* from, size_t size) const {
  SYNCLINE_DCHECK(size <= capacity_);
  if (size == 0) return;
  const size_t offset = position % capacity_;
  const size_t first = std::min(size, capacity_ - offset);
  tensor::CopyBytes(ring_ + offset, from, first);
  tensor::CopyBytes(ring_, static_cast<const char*>(from) + first, size - first);
}

void QueueLayout::CopyOut(uint64_t position, void* to, size_t size) const {
  SYNCLINE_DCHECK(size <= capacity_);
  if (size == 0) return;
  const size_t offset = position % capacity_;
  const size_t first = std::min(size, capacity_ - offset);
  tensor::CopyBytes(to, ring_ + offset, first);
  tensor::CopyBytes(static_cast<char*>(to) + first, ring_, size - first);
}

}  // namespace syncline::queue
