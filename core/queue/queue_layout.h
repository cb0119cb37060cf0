// The memory of a TensorQueue: every field, and who writes it. docs/internals/tensor_queue.md has
// the order of writing, the invariants and what a crash leaves.
#ifndef SYNCLINE_CORE_QUEUE_QUEUE_LAYOUT_H_
#define SYNCLINE_CORE_QUEUE_QUEUE_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/event_count.h"
#include "core/queue/robust_mutex.h"
#include "core/tensor/segment.h"
#include "syncline/tensor_queue.h"

namespace syncline::queue {

// Messages begin at multiples of it.
inline constexpr size_t kAlignment = base::kCacheLine;

constexpr size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What becomes of a message, in this order.
enum class Phase : uint64_t {
  kWriting,  // Its producer copies it into the ring.
  kReady,
  kReading,  // Its consumer copies it out.
  kDone,     // Its slot and its part of the ring are free once all older ones are done too.
};

// Messages are numbered from 0 on: tickets. The state of a slot says whose it is, so that no value
// ever comes again. A slot of zeros is no message's.
constexpr uint64_t StateOf(uint64_t ticket, Phase phase) {
  return (ticket + 1) << 2 | static_cast<uint64_t>(phase);
}

// One message. Before kReady the producer writes; from kReading on the consumer.
struct alignas(base::kCacheLine) Slot {
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> begin;   // Its position; bytes of the ring are numbered on and on.
  std::atomic<uint64_t> size;    // In bytes, a multiple of kAlignment.
  std::atomic<uint64_t> writer;  // The producer's ThreadId.
  std::atomic<uint64_t> reader;  // The consumer's ThreadId.
  std::atomic<int32_t> writer_pid;
};
static_assert(sizeof(Slot) == base::kCacheLine, "has no padding between slots");

struct QueueHeader {
  // Written by Create before anyone else sees the segment, and never again.
  uint64_t magic;
  uint64_t capacity;    // Bytes of the ring: whole pages.
  uint64_t slot_count;  // A power of two.
  uint64_t max_messages;
  uint64_t pid_namespace;  // Its name's hash.

  alignas(base::kCacheLine) RobustMutex put_mutex;  // Guards changes of the next four.
  std::atomic<uint64_t> tail;                       // The next ticket to be put.
  std::atomic<uint64_t> head;                       // All older tickets are done.
  std::atomic<uint32_t> closed;
  // The ThreadId of the put that waits for space ahead of all others; 0: none. Cleared without the
  // mutex too.
  std::atomic<uint64_t> first_putter;

  alignas(base::kCacheLine) RobustMutex get_mutex;  // Guards changes of `next`.
  std::atomic<uint64_t> next;                       // The next ticket to be taken.

  base::EventCount message_event;  // A message is ready, or the queue closed: consumers.
  base::EventCount space_event;    // A message is done, or the queue closed: the first putter.
  base::EventCount turn_event;     // There is no first putter, or the queue closed: other putters.

  alignas(base::kCacheLine) std::atomic<int64_t> lost_puts;
  std::atomic<int64_t> lost_gets;
};

inline constexpr uint64_t kMagic = 0x3130305154434e53;  // "SNCTQ001": names this layout.
inline constexpr size_t kPage = 4096;
inline constexpr size_t kHeaderSize = kPage;
static_assert(sizeof(QueueHeader) <= kHeaderSize);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics are shared by processes");

// Makes the memory of a queue, reserved and filled in. ArgumentError for impossible options.
absl::StatusOr<tensor::Segment> MakeQueueSegment(const TensorQueueOptions& options);

// Maps the memory of a queue, and takes ownership of `descriptor`. BackendError if it is not one
// that this process can use.
absl::StatusOr<tensor::Segment> MapQueueSegment(int descriptor);

// Where things are in a segment that one of these has returned. A value.
class QueueLayout {
 public:
  explicit QueueLayout(char* segment)
      : header_(*reinterpret_cast<QueueHeader*>(segment)),
        slots_(reinterpret_cast<Slot*>(segment + kHeaderSize)),
        ring_(segment + RingOffset(header_.slot_count)),
        mask_(header_.slot_count - 1),
        capacity_(header_.capacity) {}

  static constexpr size_t RingOffset(size_t slot_count) {
    return kHeaderSize + (slot_count * sizeof(Slot) + kPage - 1) / kPage * kPage;
  }

  QueueHeader& header() const { return header_; }
  Slot& slot(uint64_t ticket) const { return slots_[ticket & mask_]; }
  size_t capacity() const { return capacity_; }

  // Copy between the ring, from `position` on, and memory of this process. Bytes go on at the
  // ring's begin after its end.
  void CopyIn(uint64_t position, const void* from, size_t size) const;
  void CopyOut(uint64_t position, void* to, size_t size) const;

 private:
  QueueHeader& header_;
  Slot* const slots_;
  char* const ring_;
  const uint64_t mask_;
  const size_t capacity_;
};

}  // namespace syncline::queue

#endif  // SYNCLINE_CORE_QUEUE_QUEUE_LAYOUT_H_
