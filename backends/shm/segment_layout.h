// The layout of a group's shared-memory segment, and who writes each field.
//
// docs/internals/shared_segment.md draws it and says in which order it is written. In short: the
// segment is zero at first, counters only grow, and what one rank writes and others read stands on
// cache lines of its own. "Owner" means the rank to which a region belongs.
#ifndef SYNCLINE_BACKENDS_SHM_SEGMENT_LAYOUT_H_
#define SYNCLINE_BACKENDS_SHM_SEGMENT_LAYOUT_H_

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/common/call_fingerprint.h"
#include "backends/shm/thresholds.h"
#include "core/base/event_count.h"
#include "core/base/thread_bias.h"
#include "syncline/check.h"

namespace syncline::shm {

// A rank's entry to one collective: the fingerprint of its call, and its data if they are at most
// kInlineEntryMaxBytes bytes, else where they are. Written by the owner, read by all. Two calls
// match if, and only if, their fingerprints are equal (all_to_all compares its splits too: see
// collective_entry.h).
struct alignas(2 * base::kCacheLine) EntrySlot {
  struct Content {
    backends::CallFingerprint fingerprint;
    char inline_data[kInlineEntryMaxBytes];
  };

  static constexpr uint64_t Stamp(uint64_t number, bool meets) { return 2 * number + meets; }

  // The number of the collective, or 0. Pairs with the release store of `stamp`.
  uint64_t number() const { return stamp.load(std::memory_order_acquire) / 2; }
  // Whether the owner waits for the entries of all other ranks. If so, and they differ, it
  // publishes its call in full; if not, the fingerprint shows all of its call.
  bool meets() const { return stamp.load(std::memory_order_relaxed) % 2 != 0; }

  // The number of the collective, from 1, and `meets`; stored with release after `content`, which
  // is valid for this collective alone.
  std::atomic<uint64_t> stamp;
  Content content;

  const char* second_line() const { return content.inline_data + kInlineMaxBytes; }
};
static_assert(sizeof(EntrySlot) == 2 * base::kCacheLine, "one line carries a very small operation");
static_assert(offsetof(EntrySlot, content.inline_data) + kInlineMaxBytes == base::kCacheLine,
              "what one line has room for");

// Where other ranks find a tensor that they may read by direct access. Stands in the inline data of
// an entry slot: a collective that stages nothing has room for it there.
struct BufferHandle {
  static constexpr uint32_t kIsNew = 1;     // The Registration says what to map.
  static constexpr uint32_t kHasFreed = 2;  // The Registration says what to unmap.

  // The owner can read the ordinary memory of all other ranks: see CrossMemory.
  static constexpr uint32_t kReadsAll = 4;
  // `offset` is the address of the tensor in the owner's process, where other ranks may read it.
  static constexpr uint32_t kHasAddress = 8;

  uint64_t memory;     // As in SharedPlace; 0 if peers cannot map the tensor.
  uint64_t offset;     // Of the tensor's first byte in the memory.
  int32_t descriptor;  // Of the memory, in the owner's process.
  uint32_t flags;
};
static_assert(sizeof(BufferHandle) == kInlineMaxBytes, "fits one line of an entry");

// What a BufferHandle has no room for: the identity of memory to map, and what to unmap.
struct alignas(base::kCacheLine) Registration {
  static constexpr size_t kMaxFreed = 12;

  uint64_t device, inode, size;  // Of new memory.
  uint64_t freed_count;
  uint64_t freed[kMaxFreed];  // Numbers of memories that no handle will name again.
};
static_assert(sizeof(Registration) == 2 * base::kCacheLine, "has no padding");

// A message on its way from one rank to another. The slots of a pair of ranks form a chain in the
// order of sending: each names its successor. The state says which of the two ranks may write the
// slot, `position` apart, and every change of it is a release store that the other rank loads with
// acquire.
struct alignas(base::kCacheLine) MessageSlot {
  enum State : uint32_t {
    kFree,          // Sender's.
    kClaimed,       // Sender's: a send fills it.
    kPosted,        // Receiver's. Inline data are complete, eager data up to `position`.
    kMatched,       // Sender's. Rendezvous only: a receive waits for the data.
    kTransferring,  // Sender's. Rendezvous only: `position` and `buffer` are valid.
    kReceived,      // Sender's. Inline and eager only: the data have been copied out.
    kRead,          // Sender's. The receiver has read the data from the sender's tensor by CMA.
  };
  static constexpr uint64_t kNoEagerPayload = ~uint64_t{0};

  // If the message is longer than kInlineMaxBytes: the sender's eager payload buffer for
  // all of it, or kNoEagerPayload, which means rendezvous.
  uint64_t eager_payload() const {
    uint64_t payload;
    std::memcpy(&payload, inline_data, sizeof(payload));
    return payload;
  }
  void set_eager_payload(uint64_t payload) { std::memcpy(inline_data, &payload, sizeof(payload)); }

  // Of a rendezvous: where the data are in the sender's process, or 0 if they shall not be read
  // there.
  uint64_t address() const {
    uint64_t address;
    std::memcpy(&address, inline_data + sizeof(uint64_t), sizeof(address));
    return address;
  }
  void set_address(uint64_t address) {
    std::memcpy(inline_data + sizeof(uint64_t), &address, sizeof(address));
  }

  std::atomic<uint32_t> state;
  std::atomic<int32_t> tag;
  uint64_t sequence;
  int64_t count;
  // Of a rendezvous: the position of the first byte in the sequence of bytes of the buffer. Of a
  // message in an eager payload buffer: how many bytes of it the sender has copied.
  std::atomic<uint64_t> position;
  uint16_t dtype;
  uint16_t buffer;  // Which of the sender's rendezvous buffers carries the data.
  uint32_t next;    // Index of the slot of the next message. The first message of all has slot 0.
  char inline_data[kInlineMaxBytes];
};
static_assert(sizeof(MessageSlot) == base::kCacheLine, "one line carries a small message");

// Progress of a rendezvous buffer, in bytes since the group began: its messages follow each other
// in one sequence of bytes.
struct RendezvousProgress {
  alignas(base::kCacheLine) std::atomic<uint64_t> written;  // By the owner, the sender.
  alignas(base::kCacheLine) std::atomic<uint64_t> read;  // By the receiver of the current message.
};

// A rank's request for bytes of another rank's tensor that it could not read by itself: their owner
// copies them to its first chunk, the bounce buffer, which is free in a direct collective. On the
// line of direct_steps, at which the owner looks while it waits.
struct BounceRequest {
  // Identifies a request: the rank that is asked or that asks, and the count of requests of the
  // latter.
  static constexpr uint64_t Key(int rank, uint64_t number) {
    return static_cast<uint64_t>(rank) << 48 | number;
  }
  static constexpr int RankOf(uint64_t key) { return static_cast<int>(key >> 48); }
  static constexpr uint64_t NumberOf(uint64_t key) { return key & ((uint64_t{1} << 48) - 1); }

  std::atomic<uint64_t> key;    // With the rank that is asked. Released after the next two.
  uint64_t offset, bytes;       // Of the tensor of the rank that is asked.
  std::atomic<uint64_t> taken;  // The number of the last request whose answer has been copied.
};

// Identifies a call in messages to users. The two fields are stored one by one, so a reader may see
// halves of two calls: then a message names a wrong call, and nothing else is harmed.
struct LastCall {
  std::atomic<uint64_t> what;  // See last_call.cc.
  std::atomic<uint64_t> sequence;
};

// The fields of a rank, at the beginning of its region; its buffers follow. The owner writes them,
// except where noted.
struct RankRegion {
  // The collective with number n uses slot n % SegmentLayout::entry_slots.
  EntrySlot entry_slots[kEntrySlots];
  base::EventCount collective_event;  // Notified after each change of the slots and counters here.

  // Chunks of pipelined collectives since the group began: those that the owner has staged, has
  // reduced its part of, and no longer reads from others.
  alignas(base::kCacheLine) std::atomic<uint64_t> chunks_written;
  alignas(base::kCacheLine) std::atomic<uint64_t> chunks_reduced;
  alignas(base::kCacheLine) std::atomic<uint64_t> chunks_read;

  // Direct access. The n-th BufferHandle of the owner goes with registrations[n % 2].
  Registration registrations[2];
  // Twice the number of the last collective for which the owner has mapped what was new; plus one
  // if it could not.
  alignas(base::kCacheLine) std::atomic<uint64_t> mapped;
  // Steps of direct collectives that the owner has made since the group began.
  alignas(base::kCacheLine) std::atomic<uint64_t> direct_steps;
  // What the owner could not read of another rank's tensor, and that rank's answers to others.
  BounceRequest bounce_request;
  std::atomic<uint64_t> bounce_answer;  // The BounceRequest::key whose bytes are in `chunks`.

  // Notified when a message slot from or to the owner changes; by its peers too.
  base::EventCount message_event;
  RendezvousProgress rendezvous_progress[kMaxRendezvousBuffers];

  alignas(base::kCacheLine) std::atomic<uint32_t> left;  // Released once `leave_reason` is valid.
  // The number of the collective whose call stands in full in SegmentLayout::full_call.
  std::atomic<uint64_t> full_call_number;
  std::atomic<uint32_t> needs_fence;  // See Waiter::Notify.
  cpu_set_t cores;                    // Where the owner may run; valid once it has joined.
  // Where in the owner's process the number `nonce` stands, by which other ranks find out whether
  // they can read its memory; 0 if they shall not. Valid once it has joined. See CrossMemory.
  uint64_t nonce_address, nonce;
  char leave_reason[512];
  // Threads of the owner that sleep, also, where only a bell wakes them: see NodeBackend.
  std::atomic<uint32_t> sleeps_elsewhere;

  // Collectives up to this have ended here: the owner reads no data that others have staged for
  // them. progress_event is notified after changes of this and the next.
  alignas(base::kCacheLine) std::atomic<uint64_t> collectives_finished;
  // The rest is for messages about ranks that are late.
  base::BiasedCounter messages_in_flight;  // Sends and receives under way.
  LastCall last_message;                   // The last send or receive that began.
  LastCall last_call;                      // The last call that ended.
  // The collective that waits for a slot or an eager buffer, and its call. Not for those that do
  // not have to wait.
  std::atomic<uint64_t> entering_number;
  LastCall entering_call;
  // The rank for which the owner's collective waits, plus one; 0 if it does not, or not for long.
  std::atomic<int32_t> awaits;
  std::atomic<int32_t> message_awaits;  // The same of its sends and receives; of several, of any.

  // The owner has compared its entries up to this with those of all others, and reads none of these
  // any more. At most collectives_finished, which it follows at some distance: each change costs
  // those who look at it a line from another cache.
  alignas(base::kCacheLine) std::atomic<uint64_t> collectives_settled;
  // The same of two ranks, with what comes after; changes before it. See EntryRing.
  std::atomic<uint64_t> agreements;
  base::EventCount progress_event;
  // Where those sleep that are ahead of the owner: see Waiter::Rest. It wakes them once it has
  // finished collective `rested_at`, which they lower, and which it then raises to the most.
  base::EventCount rest_event;
  std::atomic<uint64_t> rested_at;
  // Where those doze that take data of the owner, which has run ahead of them: see Waiter::Doze. It
  // wakes them when it waits itself.
  base::EventCount lead_event;
};

// The first cause of the group's failure. Whichever rank changes `state` from kNone writes it, once
// and for all; see FailureCell.
struct FailureRecord {
  enum State : uint32_t { kNone, kBeingWritten, kWritten };

  alignas(base::kCacheLine) std::atomic<uint32_t> state;
  uint32_t kind;         // ErrorKind
  uint32_t reporter;     // The rank that wrote this.
  uint32_t size;         // Of the message, with which `text` begins.
  uint32_t origin_size;  // Of the ErrorOrigin that follows it, as SerializeOrigin writes it.
  char text[4096];
};

// Whether a rank has joined. Nobody, itself included, may touch a rank's region or message slots
// before: that memory may not have been reserved, and to touch it might end the process.
struct alignas(base::kCacheLine) JoinFlag {
  base::EventCount event;  // Notified when `joined` is set.
  std::atomic<uint32_t> joined;
};

// The sizes of a group's buffers, in bytes. They follow from the number of ranks and ReadTuning
// alone, so all ranks come to the same.
struct BufferSizes {
  explicit BufferSizes(int size);

  // The size of the chunks in which to move `bytes`: `max_chunk`, or less if that makes fewer than
  // kMinChunksPerTensor, but not less than min_chunk.
  size_t ChunkSize(size_t bytes, size_t max_chunk) const {
    size_t chunk = max_chunk;
    while (chunk > min_chunk && bytes / chunk < kMinChunksPerTensor) chunk /= 2;
    return chunk;
  }

  // How to move blocks of up to `bytes`, one for each of `others` ranks: in chunks of `chunk` bytes
  // that hold up to `block` bytes for each rank, at least a cache line.
  struct BlockChunks {
    size_t chunk, block;
  };
  BlockChunks BlockChunksOf(size_t bytes, size_t others) const {
    size_t chunk = ChunkSize(bytes * others, max_chunk);
    // Ends at max_chunk at the latest, which has a line for every rank.
    while (chunk < others * base::kCacheLine) chunk *= 2;
    return {chunk, chunk / others / base::kCacheLine * base::kCacheLine};
  }

  // From one eager payload buffer to the next. Were it a large power of two, the first lines of all
  // would have the same places in a cache, and push each other out of it.
  size_t EagerPayloadStride() const {
    constexpr size_t kLarge = 4 << 10;
    return eager_payload < kLarge ? eager_payload : eager_payload + 5 * base::kCacheLine;
  }

  // All eager buffers of a rank.
  size_t EagerBytes() const { return 2 * small_eager + small_eager_ring + large_eager_ring; }

  size_t eager;               // The most that a rank stages for one collective without chunks;
  size_t shared_cores_eager;  // and where ranks share cores.
  size_t small_eager;         // Each of the two small eager buffers.
  size_t small_eager_ring;    // The ring of small eager buffers for data that a rank gives.
  size_t large_eager_ring;    // The ring of large eager buffers: room for at least three.
  size_t min_chunk;           // The smallest chunk, and the largest. The ring has room for
  size_t max_chunk;           // kPipelineDepth of the largest.
  size_t direct_access;       // From here on tensors are read by direct access,
  size_t direct_chunk;        // and this is the largest chunk of it.
  size_t cma;                 // Tuning::cma_threshold.
  size_t eager_payload;       // Each of the kEagerPayloads buffers.
  size_t rendezvous_buffer;   // Each of the
  int rendezvous_buffers;     // buffers for rendezvous: as many as there are peers, with a limit.
  size_t message_slots;       // Slots from one rank to one other.
};

// Computes addresses in a group's segment. Does not own the memory. Indices that come from another
// process are for the caller to check: here they are only in tests. Copyable; thread-safe, as it
// never changes.
class SegmentLayout {
 public:
  // The segment begins at `data`; the group has `size` ranks.
  SegmentLayout(char* data, int size)
      : data_(data),
        size_(size),
        entry_slots_(size == 2 ? kPairEntrySlots : kEntrySlots),
        offsets_(size),
        regions_(data + offsets_.regions),
        eager_bytes_(offsets_.sizes.EagerBytes()) {}

  // Bytes of the segment of a group of `size` ranks.
  static size_t BytesFor(int size) { return Offsets(size).total; }

  // The bytes that rank 0 reserves before others come: all that may be touched before a rank joins.
  struct Extent {
    size_t offset, size;
  };
  static Extent CommonOf(int size) { return {0, Offsets(size).regions}; }
  // The bytes that each rank reserves itself before it joins, so that they lie on its NUMA node:
  // its region and the message slots of what it sends.
  static std::array<Extent, 2> OwnOf(int rank, int size);

  int size() const { return size_; }
  const BufferSizes& sizes() const { return offsets_.sizes; }

  FailureRecord& failure_record() const { return *reinterpret_cast<FailureRecord*>(data_); }
  JoinFlag& join_flag(int rank) const {
    SYNCLINE_DCHECK(rank >= 0 && rank < size_);
    return reinterpret_cast<JoinFlag*>(data_ + offsets_.join_flags)[rank];
  }
  // The acquire pairs with the release in ShmGroup::Join: the rank's region may be read then.
  bool has_joined(int rank) const {
    return join_flag(rank).joined.load(std::memory_order_acquire) != 0;
  }
  RankRegion& region(int rank) const { return *reinterpret_cast<RankRegion*>(RegionOf(rank)); }
  EntrySlot& entry_slot(int rank, uint64_t number) const {
    return region(rank).entry_slots[number & (entry_slots_ - 1)];
  }
  // Those of a rank that are in use, a power of two.
  uint64_t entry_slots() const { return entry_slots_; }

  // All eager buffers of a rank.
  size_t eager_bytes() const { return eager_bytes_; }
  // The buffers of a rank. EagerRing and ChunkRing give the offsets.
  char* eager_buffer(int rank, size_t offset) const {
    SYNCLINE_DCHECK(offset <= offsets_.chunks - offsets_.eager_buffers);
    return RegionOf(rank) + offsets_.eager_buffers + offset;
  }
  char* chunk(int rank, size_t offset) const {
    SYNCLINE_DCHECK(offset <= offsets_.reduced - offsets_.chunks);
    return RegionOf(rank) + offsets_.chunks + offset;
  }
  // What the rank has reduced of its parts of chunks; each part begins on a cache line.
  char* reduced(int rank, size_t offset) const {
    SYNCLINE_DCHECK(offset <= offsets_.eager_payloads - offsets_.reduced);
    return RegionOf(rank) + offsets_.reduced + offset;
  }
  char* eager_payload(int rank, uint64_t index) const {
    SYNCLINE_DCHECK(index < kEagerPayloads);
    return RegionOf(rank) + offsets_.eager_payloads + index * sizes().EagerPayloadStride();
  }
  char* rendezvous_buffer(int rank, int index) const {
    SYNCLINE_DCHECK(index >= 0 && index < sizes().rendezvous_buffers);
    return RegionOf(rank) + offsets_.rendezvous_buffers + index * sizes().rendezvous_buffer;
  }

  // Room for a call in full; see CallDescription::ToWords.
  int64_t* full_call(int rank) const {
    return reinterpret_cast<int64_t*>(RegionOf(rank) + offsets_.full_call);
  }

  // One of the slots of messages from `src` to `dst`.
  MessageSlot& message_slot(int src, int dst, size_t index) const {
    SYNCLINE_DCHECK(src >= 0 && src < size_ && dst >= 0 && dst < size_);
    SYNCLINE_DCHECK(index < sizes().message_slots);
    const size_t pair = static_cast<size_t>(src) * size_ + dst;
    return reinterpret_cast<MessageSlot*>(
        data_ + offsets_.message_slots)[pair * sizes().message_slots + index];
  }

 private:
  // Offsets of buffers from the beginning of a region, and of the others from that of the segment.
  struct Offsets {
    explicit Offsets(int size);

    BufferSizes sizes;
    size_t full_call, eager_buffers, chunks, reduced, eager_payloads, rendezvous_buffers;
    size_t region_bytes;
    size_t join_flags, regions, message_slots, total;
  };

  char* RegionOf(int rank) const {
    SYNCLINE_DCHECK(rank >= 0 && rank < size_);
    return regions_ + rank * offsets_.region_bytes;
  }

  char* data_;
  int size_;
  uint64_t entry_slots_;
  Offsets offsets_;
  char* regions_;
  size_t eager_bytes_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SEGMENT_LAYOUT_H_
