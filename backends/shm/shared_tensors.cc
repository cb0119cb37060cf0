#include "backends/shm/shared_tensors.h"

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
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/tensor/shared_memory.h"

namespace syncline {
namespace {

// Opens nothing that is no segment, which might wait, or do something.
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

SharedTensors::SharedTensors(Vigil& vigil)
    : vigil_(vigil),
      board_(vigil.board()),
      offers_(board_.size()),
      data_(board_.size()),
      mapped_(board_.size()) {}

void SharedTensors::MakeOffer(const void* data, size_t bytes, Meeting& meeting) {
  own_ = {};
  own_data_ = static_cast<const char*>(data);
  Introduction& introduction = IntroductionOf(rank(), meeting.waiting().number);
  if (data != nullptr && is_usable_) {
    if (const auto place = FindShared(data, bytes)) {
      own_ = {place->memory, place->offset, place->descriptor, 0};
      if (introduced_.count(place->memory) == 0) {
        own_.flags |= Offer::kIsNew;
        introduction.device = place->identity.device;
        introduction.inode = place->identity.inode;
        introduction.size = place->size;
      }
    }
  }
  FindFreed();
  if (!freed_.empty()) {
    own_.flags |= Offer::kHasFreed;
    introduction.freed_count = std::min(freed_.size(), Introduction::kFreed);
    std::copy_n(freed_.end() - introduction.freed_count, introduction.freed_count,
                introduction.freed);
    freed_.resize(freed_.size() - introduction.freed_count);
  }
  std::memcpy(meeting.Table(), &own_, sizeof(own_));
}

void SharedTensors::FindFreed() {
  if (introduced_.empty() || SharedMemoriesFreed() == freed_before_) return;
  freed_before_ = SharedMemoriesFreed();
  for (auto memory = introduced_.begin(); memory != introduced_.end();) {
    if (IsShared(*memory)) {
      ++memory;
    } else {
      freed_.push_back(*memory);
      memory = introduced_.erase(memory);
    }
  }
}

absl::StatusOr<bool> SharedTensors::Agree(const Sources& sources, const Meeting& meeting) {
  bool all_offer = true, any_new = false;
  for (int r = 0; r < board_.size(); ++r) {
    Offer& offer = offers_[r];
    std::memcpy(&offer, meeting.TableOf(r), sizeof(offer));
    if (r != rank() && (offer.flags & Offer::kHasFreed) != 0) {
      Forget(r, IntroductionOf(r, meeting.waiting().number));
    }
    if (!sources.Has(r)) continue;
    if (offer.memory == 0) all_offer = false;
    if ((offer.flags & Offer::kIsNew) != 0) any_new = true;
  }
  if (!all_offer) return false;
  if (any_new) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool all_mapped, MapNew(sources, meeting.waiting()));
    if (!all_mapped) return false;
  }
  for (int r = 0; r < board_.size(); ++r) {
    if (!sources.Has(r)) continue;
    data_[r] =
        r == rank() ? own_data_ : mapped_[r].at(offers_[r].memory).data() + offers_[r].offset;
  }
  return true;
}

void SharedTensors::Forget(int rank, const Introduction& introduction) {
  for (uint64_t i = 0; i < introduction.freed_count; ++i) {
    mapped_[rank].erase(introduction.freed[i]);
  }
}

absl::StatusOr<bool> SharedTensors::MapNew(const Sources& sources, const Waiting& waiting) {
  bool all_mapped = true;
  for (int r = 0; r < board_.size(); ++r) {
    const bool is_new = (offers_[r].flags & Offer::kIsNew) != 0;
    if (r == rank() || !sources.Has(r) || !is_new) continue;
    const absl::Status status = Map(r, offers_[r], IntroductionOf(r, waiting.number));
    if (status.ok()) continue;
    all_mapped = false;
    Log(LogLevel::kWarning,
        absl::StrCat("shm: tensors in shared memory are copied, since rank ", rank(),
                     " cannot map those of ", vigil_.roster().Describe(r), ": ", status.message()));
  }
  RankArea& own = board_.area(rank());
  own.mapped.store(2 * waiting.number + (all_mapped ? 0 : 1), std::memory_order_release);
  vigil_.Ring(own.done);
  for (int r = 0; r < board_.size(); ++r) {
    RankArea& area = board_.area(r);
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(area.done, r, waiting, [&] {
      return area.mapped.load(std::memory_order_acquire) >= 2 * waiting.number;
    }));
    if (area.mapped.load(std::memory_order_relaxed) % 2 != 0) all_mapped = false;
  }
  if (all_mapped) {
    if (sources.Has(rank())) introduced_.insert(own_.memory);
  } else {
    is_usable_ = false;
    for (auto& of_rank : mapped_) of_rank.clear();
  }
  return all_mapped;
}

absl::Status SharedTensors::Map(int rank, const Offer& offer, const Introduction& introduction) {
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor,
                            OpenOfProcess(vigil_.roster().pid(rank), offer.descriptor));
  SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Segment::MapToRead(descriptor, introduction.size));
  if (!(segment.identity() == Segment::Identity{introduction.device, introduction.inode})) {
    return BackendError("its descriptor is of another memory: do the ranks see other pids?");
  }
  segment.CloseDescriptor();
  mapped_[rank].insert_or_assign(offer.memory, std::move(segment));
  return absl::OkStatus();
}

}  // namespace syncline
