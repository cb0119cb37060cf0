// Finds the tensors that other ranks offer for direct access: maps those in shared memory, and
// keeps the mappings.
#ifndef SYNCLINE_BACKENDS_SHM_REGISTRATION_CACHE_H_
#define SYNCLINE_BACKENDS_SHM_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/shm/collective_entry.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/wait_context.h"
#include "core/tensor/segment.h"

namespace syncline::shm {

// The ranks whose tensors others read in a collective.
struct ReadableRanks {
  int only = kEveryRank;  // One rank, or kEveryRank.
  int except = -1;        // A rank that is not readable, or -1.

  bool Has(int rank) const { return (only == kEveryRank || only == rank) && rank != except; }
};

// How many bytes of data a readable rank has.
using BytesOfRank = absl::FunctionRef<size_t(int rank)>;

// One rank's part. In the entry of a collective each rank stages a BufferHandle of its tensor;
// after the exchange all ranks come to the same conclusion. Shared memory is mapped by all other
// ranks, to be read only, when a handle first names it; and unmapped at the first such entry after
// its owner has freed it, or with this object. Of a tensor in ordinary memory the handle has the
// address, from which others read it by CMA.
//
// A rank opens a peer's memory through /proc/PID/fd, where the kernel lets a process see the open
// files of others of its user, and checks that it is the memory that was meant. If a rank cannot,
// no rank maps memory from then on.
//
// Owns the mappings, borrows the group. Not thread-safe.
class RegistrationCache {
 public:
  explicit RegistrationCache(ShmGroup& group);

  // Where a rank offers its tensor: in shared memory, by its address, or either.
  struct Offer {
    bool by_mapping = false, by_address = false;
  };

  // Stages the handle of `data` in an entry that stages nothing else, before the exchange. The
  // handle is empty if `data` is null and not because there are no bytes, or cannot be offered as
  // `offer` says.
  void StageHandle(const void* data, size_t bytes, Offer offer, CollectiveEntry& entry);

  // After the exchange: whether all ranks can read what all `readable` ranks have staged. The same
  // on all ranks; each must call it. Errors are those of Waiter::Await, and the failure of the
  // group where a rank has staged a handle whose bytes are not all within its memory; a rank that
  // cannot map memory logs why.
  absl::StatusOr<bool> Resolve(const ReadableRanks& readable, BytesOfRank bytes_of,
                               const CollectiveEntry& entry);

  // If Resolve has returned true: the data of a readable rank, or null if they are in its ordinary
  // memory, at this address in its process.
  const char* DataOf(int rank) const { return data_[rank]; }
  uint64_t AddressOf(int rank) const { return handles_[rank].offset; }
  // Whether some readable rank's data are.
  bool HasAddresses() const { return has_addresses_; }

 private:
  void CollectFreed();
  absl::Status Unmap(int rank, const Registration& registration);
  // The `bytes` that `handle` of another rank names. Fails the group if it has mapped no such
  // memory or they are not all in it.
  absl::StatusOr<const char*> Find(int rank, const BufferHandle& handle, size_t bytes);
  absl::StatusOr<bool> MapNewRegistrations(const ReadableRanks& readable,
                                           const WaitContext& context);
  absl::Status Map(int rank, const BufferHandle& handle, const Registration& registration);
  // That of `rank` for the last StageHandle.
  Registration& RegistrationOf(int rank) const {
    return layout_.region(rank).registrations[handles_staged_ % 2];
  }

  int rank() const { return group_.rank(); }

  ShmGroup& group_;
  const SegmentLayout& layout_;
  bool is_usable_ = true;
  uint64_t handles_staged_ = 0;  // The same on all ranks once an exchange has succeeded.

  BufferHandle own_ = {};
  const char* own_data_ = nullptr;
  std::set<uint64_t> registered_;  // Memories of this rank that the others have mapped.
  std::vector<uint64_t> freed_;    // Those of them that the others shall unmap.
  uint64_t freed_before_ = 0;      // SharedMemoriesFreed() at the last CollectFreed.

  std::vector<BufferHandle> handles_;  // By rank, of the last exchange.
  bool has_addresses_ = false;         // Likewise.
  std::vector<const char*> data_;      // Likewise.
  std::vector<std::map<uint64_t, tensor::Segment>>
      mapped_;  // By rank, then by the memory's number.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_REGISTRATION_CACHE_H_
