#include "backends/shm/direct_access.h"

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "backends/shm/byte_range.h"
#include "backends/shm/thresholds.h"
#include "core/tensor/copy_bytes.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// Whether the tensors follow each other without gaps: others find them by the address of the first.
bool AreContiguous(absl::Span<const Tensor> tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (Bytes(tensors[i - 1]) + tensors[i - 1].nbytes() != Bytes(tensors[i])) return false;
  }
  return !tensors.empty();
}

// Where the blocks of a rank begin that it has for the others in an all_to_all. Stands in the
// inline data of its entry, after the splits.
struct AddressHandle {
  uint64_t address;
  uint64_t flags;  // Those of BufferHandle.
};
static_assert(sizeof(AddressHandle) <= CollectiveEntry::kInlineBytesAfterSplits, "has room there");

size_t BytesOf(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

absl::StatusOr<bool> DirectAccess::Exchange(CollectiveEntry& entry, size_t bytes,
                                            const ReadableRanks& readable,
                                            absl::Span<const Tensor> own, BytesOfRank bytes_of) {
  const bool has_root = readable.only != kEveryRank || readable.except >= 0;
  return ExchangeHandles(bytes, !(has_root && bytes >= kRootedDirectAccessMaxBytes), own, readable,
                         bytes_of, entry);
}

absl::StatusOr<bool> DirectAccess::ExchangeForAllReduce(CollectiveEntry& entry,
                                                        const Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  const bool may_be_mapped = bytes >= kBeyondCachesMinBytes || until_trial_ == 0;
  if (!may_be_mapped) --until_trial_;
  const auto bytes_of = [bytes](int) { return bytes; };
  return ExchangeHandles(bytes, may_be_mapped, absl::MakeConstSpan(&tensor, 1), {}, bytes_of,
                         entry);
}

// Each rank decides for itself what it offers; one that offers nothing decides for all.
absl::StatusOr<bool> DirectAccess::ExchangeHandles(size_t bytes, bool may_be_mapped,
                                                   absl::Span<const Tensor> own,
                                                   const ReadableRanks& readable,
                                                   BytesOfRank bytes_of, CollectiveEntry& entry) {
  if (size() == 1) {
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
    return false;
  }
  const bool is_readable = readable.Has(rank()) && AreContiguous(own);
  own_ = is_readable ? Bytes(own[0]) : nullptr;
  own_bytes_ = BytesOf(own);
  RegistrationCache::Offer offer;
  offer.by_mapping = may_be_mapped && bytes >= layout_.sizes().direct_access;
  offer.by_address = OffersAddress(entry.context().call.collective->kind, bytes);
  registrations_.StageHandle(own_, own_bytes_, offer, entry);
  SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct,
                            registrations_.Resolve(readable, bytes_of, entry));
  uses_cma_ = is_direct && registrations_.HasAddresses();
  for (int r = 0; is_direct && r < size(); ++r) {
    mapped_[r] = r == rank() ? own_ : registrations_.DataOf(r);
    addresses_[r] = registrations_.AddressOf(r);
  }
  return is_direct;
}

bool DirectAccess::OffersAddress(OpKind kind, size_t bytes) {
  if (until_offer_ > 0) {
    --until_offer_;
    return false;
  }
  return group_.OffersAddress(kind, bytes, copier_);
}

void DirectAccess::StageAddress(CollectiveEntry& entry, size_t largest,
                                absl::Span<const Tensor> own) {
  AddressHandle handle = {};
  if (OffersAddress(OpKind::kAllToAll, largest) && AreContiguous(own)) {
    handle.address = reinterpret_cast<uint64_t>(own[0].data());
    handle.flags |= BufferHandle::kHasAddress;
  }
  if (group_.cross_memory().CanReadAll()) handle.flags |= BufferHandle::kReadsAll;
  own_ = Bytes(own[0]);
  own_bytes_ = BytesOf(own);
  std::memcpy(entry.InlineDataAfterSplits(sizeof(handle)), &handle, sizeof(handle));
}

bool DirectAccess::ResolveAddresses(const CollectiveEntry& entry) {
  constexpr uint64_t kNeeded = BufferHandle::kHasAddress | BufferHandle::kReadsAll;
  uses_cma_ = true;
  for (int r = 0; r < size(); ++r) {
    AddressHandle handle;
    std::memcpy(&handle, entry.InlineDataAfterSplitsOf(r), sizeof(handle));
    if ((handle.flags & kNeeded) != kNeeded) uses_cma_ = false;
    mapped_[r] = nullptr;
    addresses_[r] = handle.address;
  }
  return uses_cma_;
}

absl::Status DirectAccess::Read(int rank, size_t offset, void* to, size_t bytes,
                                const WaitContext& context) {
  if (mapped_[rank] != nullptr) {
    Copy(to, mapped_[rank] + offset, bytes);
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      const bool is_read,
      group_.ReadByAddress(rank, addresses_[rank] + offset, to, bytes, context.call));
  if (is_read) return absl::OkStatus();
  return ReadByBounce(rank, offset, to, bytes, context);
}

absl::Status DirectAccess::ReadByBounce(int rank, size_t offset, void* to, size_t bytes,
                                        const WaitContext& context) {
  RankRegion& own = layout_.region(this->rank());
  const RankRegion& owner = layout_.region(rank);
  for (size_t done = 0; done < bytes;) {
    const size_t taken = std::min(bytes - done, layout_.sizes().max_chunk);
    const uint64_t number = ++requests_;
    own.bounce_request.offset = offset + done;
    own.bounce_request.bytes = taken;
    // Pairs with the acquire load in ServeRequests.
    own.bounce_request.key.store(BounceRequest::Key(rank, number), std::memory_order_release);
    NotifyAll();
    // Pairs with the release store in ServeRequests.
    SYNCLINE_RETURN_IF_ERROR(AwaitServing(rank, context, [&] {
      return owner.bounce_answer.load(std::memory_order_acquire) ==
             BounceRequest::Key(this->rank(), number);
    }));
    tensor::CopyBytes(static_cast<char*>(to) + done, layout_.chunk(rank, 0), taken);
    // Pairs with the acquire load in ServeRequests: the buffer may be used again.
    own.bounce_request.taken.store(number, std::memory_order_release);
    NotifyAll();
    done += taken;
  }
  return absl::OkStatus();
}

void DirectAccess::ServeRequests() {
  if (being_served_ >= 0) {
    const BounceRequest& request = layout_.region(being_served_).bounce_request;
    if (request.taken.load(std::memory_order_acquire) < served_[being_served_]) return;
    being_served_ = -1;
  }
  for (int r = 0; r < size(); ++r) {
    const BounceRequest& request = layout_.region(r).bounce_request;
    // Of the same rank it changes only once this rank has answered, so the other fields hold still.
    const uint64_t key = request.key.load(std::memory_order_acquire);
    const uint64_t number = BounceRequest::NumberOf(key);
    if (r == rank() || BounceRequest::RankOf(key) != rank() || number <= served_[r]) continue;
    const size_t offset = request.offset, bytes = request.bytes;
    if (own_ == nullptr || offset > own_bytes_ || bytes > own_bytes_ - offset ||
        bytes > layout_.sizes().max_chunk) {
      group_.FailDamaged(r, absl::StrCat("a request for ", bytes, " bytes from ", offset, " on"))
          .IgnoreError();
      return;
    }
    tensor::CopyBytes(layout_.chunk(rank(), 0), own_ + offset, bytes);
    served_[r] = number;
    being_served_ = r;
    until_offer_ = kDirectTrialInterval;
    RankRegion& own = group_.own_region();
    own.bounce_answer.store(BounceRequest::Key(r, number), std::memory_order_release);
    group_.waiter().Notify(own.collective_event);
    return;
  }
}

template <typename Ready>
absl::Status DirectAccess::AwaitServing(int rank, const WaitContext& context, const Ready& ready) {
  return group_.waiter().Await(layout_.region(rank).collective_event, rank, context, [&] {
    if (uses_cma_) ServeRequests();
    return ready();
  });
}

// A rank that shall serve a request may wait for any other.
void DirectAccess::NotifyAll() {
  for (int r = 0; r < size(); ++r) group_.waiter().Notify(layout_.region(r).collective_event);
}

void DirectAccess::PublishSteps(uint64_t steps) {
  RankRegion& own = group_.own_region();
  // Pairs with the acquire load in AwaitSteps.
  own.direct_steps.store(steps, std::memory_order_release);
  group_.waiter().Notify(own.collective_event);
}

absl::Status DirectAccess::AwaitSteps(int rank, uint64_t steps, const WaitContext& context) {
  const RankRegion& region = layout_.region(rank);
  return AwaitServing(rank, context,
                      [&] { return region.direct_steps.load(std::memory_order_acquire) >= steps; });
}

absl::Status DirectAccess::Finish(const ReadableRanks& readable, const WaitContext& context) {
  // An owner may have given up, and used its tensor for something else, while this rank read there.
  SYNCLINE_RETURN_IF_ERROR(group_.failure_cell().CheckIntact(context.call));
  PublishSteps(++steps_);
  if (!readable.Has(rank())) return absl::OkStatus();
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) SYNCLINE_RETURN_IF_ERROR(AwaitSteps(r, steps_, context));
  }
  return absl::OkStatus();
}

absl::Status DirectAccess::Reduce(DType dtype, ReduceOp op, size_t offset, const char* own,
                                  char* to, size_t bytes, const WaitContext& context) {
  // What is mapped needs no blocks.
  const size_t block = uses_cma_ ? kCmaBlockBytes : bytes;
  if (uses_cma_) blocks_.resize(size() * block);
  absl::InlinedVector<const void*, 8> inputs(size());
  for (size_t at = 0; at < bytes; at += block) {
    const size_t taken = std::min(block, bytes - at);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) {
        inputs[r] = own + at;
      } else if (mapped_[r] != nullptr) {
        inputs[r] = mapped_[r] + offset + at;
      } else {
        char* const read = blocks_.data() + r * block;
        SYNCLINE_RETURN_IF_ERROR(Read(r, offset + at, read, taken, context));
        inputs[r] = read;
      }
    }
    tensor::Reduce(dtype, op, to + at, inputs, taken / SizeOf(dtype));
  }
  return absl::OkStatus();
}

// Reduces the first block to memory of this core and copies it from there, which shows how fast the
// tensor can be written. If that is slow, as it was before, all other blocks go the same way, past
// the caches.
void DirectAccess::ReduceMapped(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes) {
  absl::InlinedVector<const void*, 8> inputs(size());
  alignas(base::kCacheLine) char block[kBypassBlockBytes];
  for (size_t at = begin, end = begin + bytes; at < end;) {
    const bool by_block = at == begin || reduced_copier_.bypasses_caches();
    const size_t taken = by_block ? std::min(kBypassBlockBytes, end - at) : end - at;
    for (int r = 0; r < size(); ++r) inputs[r] = mapped_[r] + at;
    char* const to = Bytes(tensor) + at;
    tensor::Reduce(tensor.dtype(), op, by_block ? block : to, inputs,
                   taken / SizeOf(tensor.dtype()));
    if (by_block) reduced_copier_.Copy(to, block, taken);
    at += taken;
  }
}

// A reduce-scatter and then an all-gather on each chunk, as ShmCollectives::ReduceScatterGather. No
// rank reads what another still writes: of the k-th part of each chunk, only rank k reads the
// inputs, and only it writes the result, which the others read after its step for that chunk.
absl::Status DirectAccess::AllReduce(const Tensor& tensor, ReduceOp op,
                                     const WaitContext& context) {
  const size_t bytes = tensor.nbytes();
  const size_t chunk = layout_.sizes().ChunkSize(bytes, layout_.sizes().direct_chunk);
  const size_t part = CeilDiv(CeilDiv(chunk, size()), base::kCacheLine) * base::kCacheLine;
  const uint64_t chunks = CeilDiv(bytes, chunk), first = steps_;
  // Gathers one chunk behind, while the others reduce theirs.
  for (uint64_t k = 0; k <= chunks; ++k) {
    if (k < chunks) {
      const ByteRange range(bytes, chunk, k);
      const ByteRange own(range.size, part, rank());
      const size_t begin = range.begin + own.begin;
      if (uses_cma_) {
        SYNCLINE_RETURN_IF_ERROR(Reduce(tensor.dtype(), op, begin, Bytes(tensor) + begin,
                                        Bytes(tensor) + begin, own.size, context));
      } else if (own.size > 0) {
        ReduceMapped(tensor, op, begin, own.size);
      }
      PublishSteps(first + k + 1);
    }
    if (k == 0) continue;
    const ByteRange range(bytes, chunk, k - 1);
    for (int i = 1; i < size(); ++i) {
      const int r = (rank() + i) % size();
      const ByteRange theirs(range.size, part, r);
      const size_t begin = range.begin + theirs.begin;
      SYNCLINE_RETURN_IF_ERROR(AwaitSteps(r, first + k, context));
      if (mapped_[r] != nullptr) {
        gathered_copier_.Copy(Bytes(tensor) + begin, mapped_[r] + begin, theirs.size);
      } else {
        SYNCLINE_RETURN_IF_ERROR(Read(r, begin, Bytes(tensor) + begin, theirs.size, context));
      }
    }
  }
  // Where cores share no cache, a line that another core still holds costs so much to write that it
  // is faster to copy tensors that fit the caches through buffers.
  if (reduced_copier_.bypasses_caches() || gathered_copier_.bypasses_caches()) {
    until_trial_ = kDirectTrialInterval;
  }
  steps_ += chunks;
  return Finish({}, context);
}

}  // namespace syncline::shm
