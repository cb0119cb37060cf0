#include "backends/shm/registration_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/tensor/shared_place.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// Opens nothing but a memfd of this library: to open another file might block or have effects.
absl::StatusOr<int> OpenOfProcess(int pid, int descriptor) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", descriptor);
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  if (length >= 0 && !absl::StartsWith(absl::string_view(target, length), "/memfd:syncline")) {
    return BackendError(absl::StrCat(path, " is something else: do the ranks see other pids?"));
  }
  const int opened = length < 0 ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return BackendError(absl::StrCat(path, ": ", std::strerror(errno)));
  return opened;
}

}  // namespace

RegistrationCache::RegistrationCache(ShmGroup& group)
    : group_(group),
      layout_(group.layout()),
      handles_(layout_.size()),
      data_(layout_.size()),
      mapped_(layout_.size()) {}

void RegistrationCache::StageHandle(const void* data, size_t bytes, Offer offer,
                                    CollectiveEntry& entry) {
  own_ = {};
  own_data_ = static_cast<const char*>(data);
  ++handles_staged_;
  // Written before the exchange, whose release and acquire make it visible with the handle. All
  // ranks have ended the exchange of handles before the last: they have entered the last one.
  Registration& registration = RegistrationOf(rank());
  if (data != nullptr && offer.by_mapping && is_usable_) {
    if (const auto found = tensor::FindShared(data, bytes)) {
      own_ = {found->memory, found->offset, found->descriptor, 0};
      if (registered_.count(found->memory) == 0) {
        own_.flags |= BufferHandle::kIsNew;
        registration.device = found->identity.device;
        registration.inode = found->identity.inode;
        registration.size = found->size;
      }
    }
  }
  CollectFreed();
  if (!freed_.empty()) {
    own_.flags |= BufferHandle::kHasFreed;
    // What does not fit is left for the next entries.
    registration.freed_count = std::min(freed_.size(), Registration::kMaxFreed);
    std::copy_n(freed_.end() - registration.freed_count, registration.freed_count,
                registration.freed);
    freed_.resize(freed_.size() - registration.freed_count);
  }
  if ((data != nullptr || bytes == 0) && offer.by_address && own_.memory == 0) {
    own_.offset = reinterpret_cast<uint64_t>(data);
    own_.flags |= BufferHandle::kHasAddress;
  }
  if (group_.cross_memory().CanReadAll()) own_.flags |= BufferHandle::kReadsAll;
  std::memcpy(entry.InlineData(sizeof(own_)), &own_, sizeof(own_));
}

void RegistrationCache::CollectFreed() {
  // Mostly one comparison: to look for every memory takes a lock.
  if (registered_.empty() || tensor::SharedMemoriesFreed() == freed_before_) return;
  freed_before_ = tensor::SharedMemoriesFreed();
  for (auto memory = registered_.begin(); memory != registered_.end();) {
    if (tensor::IsShared(*memory)) {
      ++memory;
    } else {
      freed_.push_back(*memory);
      memory = registered_.erase(memory);
    }
  }
}

absl::StatusOr<bool> RegistrationCache::Resolve(const ReadableRanks& readable, BytesOfRank bytes_of,
                                                const CollectiveEntry& entry) {
  bool all_staged = true, any_new = false, all_read = true;
  has_addresses_ = false;
  for (int r = 0; r < layout_.size(); ++r) {
    BufferHandle& handle = handles_[r];
    std::memcpy(&handle, entry.InlineDataOf(r), sizeof(handle));
    if (r != rank() && (handle.flags & BufferHandle::kHasFreed) != 0) {
      SYNCLINE_RETURN_IF_ERROR(Unmap(r, RegistrationOf(r)));
    }
    if ((handle.flags & BufferHandle::kReadsAll) == 0) all_read = false;
    if (!readable.Has(r)) continue;
    const bool has_address = (handle.flags & BufferHandle::kHasAddress) != 0;
    if (has_address) has_addresses_ = true;
    if (handle.memory == 0 && !has_address) all_staged = false;
    if ((handle.flags & BufferHandle::kIsNew) != 0) any_new = true;
  }
  // All ranks have read the same handles, so all take the same branches here.
  if (!all_staged || (has_addresses_ && !all_read)) return false;
  if (any_new) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool all_mapped,
                              MapNewRegistrations(readable, entry.context()));
    if (!all_mapped) return false;
  }
  for (int r = 0; r < layout_.size(); ++r) {
    if (!readable.Has(r)) continue;
    data_[r] = own_data_;
    if (r == rank()) continue;
    data_[r] = nullptr;
    if (handles_[r].memory == 0) continue;
    SYNCLINE_ASSIGN_OR_RETURN(data_[r], Find(r, handles_[r], bytes_of(r)));
  }
  return true;
}

absl::Status RegistrationCache::Unmap(int rank, const Registration& registration) {
  const uint64_t count = registration.freed_count;
  if (count > Registration::kMaxFreed) {
    return group_.FailDamaged(rank, absl::StrCat(count, " freed memories in one registration"));
  }
  for (uint64_t i = 0; i < count; ++i) mapped_[rank].erase(registration.freed[i]);
  return absl::OkStatus();
}

absl::StatusOr<const char*> RegistrationCache::Find(int rank, const BufferHandle& handle,
                                                    size_t bytes) {
  const auto found = mapped_[rank].find(handle.memory);
  if (found == mapped_[rank].end()) {
    return group_.FailDamaged(rank, absl::StrCat("the handle of unknown memory ", handle.memory));
  }
  const size_t size = found->second.size();
  if (handle.offset > size || bytes > size - handle.offset) {
    return group_.FailDamaged(
        rank, absl::StrCat("a handle with the offset ", handle.offset, ", from which ", bytes,
                           " bytes are not within its memory of ", size));
  }
  return found->second.data() + handle.offset;
}

absl::StatusOr<bool> RegistrationCache::MapNewRegistrations(const ReadableRanks& readable,
                                                            const WaitContext& context) {
  bool all_mapped = true;
  for (int r = 0; r < layout_.size(); ++r) {
    const bool is_new = (handles_[r].flags & BufferHandle::kIsNew) != 0;
    if (r == rank() || !readable.Has(r) || !is_new) continue;
    const absl::Status status = Map(r, handles_[r], RegistrationOf(r));
    if (status.ok()) continue;
    all_mapped = false;
    Log(LogLevel::kWarning,
        absl::StrCat("shm: tensors in shared memory are copied, since rank ", rank(),
                     " cannot map those of ", group_.peers().Describe(r), ": ", status.message()));
  }
  RankRegion& own = group_.own_region();
  // One counter carries both: the number of the collective, and whether this rank succeeded. Pairs
  // with the acquire load below, on the other ranks.
  own.mapped.store(2 * context.number + (all_mapped ? 0 : 1), std::memory_order_release);
  group_.waiter().Notify(own.collective_event);
  for (int r = 0; r < layout_.size(); ++r) {
    RankRegion& region = layout_.region(r);
    SYNCLINE_RETURN_IF_ERROR(group_.waiter().Await(region.collective_event, r, context, [&] {
      return region.mapped.load(std::memory_order_acquire) >= 2 * context.number;
    }));
    // Relaxed: the wait has loaded the same value with acquire.
    if (region.mapped.load(std::memory_order_relaxed) % 2 != 0) all_mapped = false;
  }
  if (all_mapped) {
    if (readable.Has(rank()) && own_.memory != 0) registered_.insert(own_.memory);
  } else {
    // On all ranks, since all have read the same counters.
    is_usable_ = false;
    for (auto& of_rank : mapped_) of_rank.clear();
  }
  return all_mapped;
}

absl::Status RegistrationCache::Map(int rank, const BufferHandle& handle,
                                    const Registration& registration) {
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor,
                            OpenOfProcess(group_.peers().pid(rank), handle.descriptor));
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment,
                            tensor::Segment::MapToRead(descriptor, registration.size));
  // In another pid namespace the path names a descriptor of some other process.
  if (!(segment.identity() == tensor::Segment::Identity{registration.device, registration.inode})) {
    return BackendError("its descriptor is of another memory: do the ranks see other pids?");
  }
  segment.CloseDescriptor();
  mapped_[rank].insert_or_assign(handle.memory, std::move(segment));
  return absl::OkStatus();
}

}  // namespace syncline::shm
