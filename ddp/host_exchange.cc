#include "ddp/host_exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/group/backend_spec.h"
#include "core/tensor/copy_bytes.h"
#include "syncline/byte_collectives.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/device_memory.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

// What the device uses until it has ended, also if nobody waits for it any more.
struct Buffers {
  Tensor on_device;
  std::shared_ptr<void> pinned;
};

}  // namespace

bool ServesHost(const ProcessGroup& group) {
  const auto backends = group::ParseBackendSpec(group.backend());
  return !backends.ok() || backends->count(DeviceType::kCpu) != 0;
}

absl::Status HostExchange::OnDevice(
    const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor& copy)> call) const {
  const absl::Status status = OnDeviceHere(tensor, call);
  // A device that fails, or has no memory left, does so on this rank alone: the others must not
  // wait for it.
  if (!status.ok() && group_.status().ok()) {
    group_.Abort(absl::StrCat("rank ", group_.rank(), ": ", status.message()));
  }
  return status;
}

absl::Status HostExchange::OnDeviceHere(
    const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor& copy)> call) const {
  device::DeviceRuntime& runtime = lane_->runtime();
  const Stream& stream = lane_->stream();
  const auto buffers = std::make_shared<Buffers>();
  SYNCLINE_ASSIGN_OR_RETURN(buffers->on_device,
                            EmptyOnDevice(lane_->device(), tensor.dtype(), tensor.shape()));
  SYNCLINE_ASSIGN_OR_RETURN(buffers->pinned, runtime.AllocatePinned(tensor.nbytes()));
  const Tensor& copy = buffers->on_device;
  void* const pinned = buffers->pinned.get();
  tensor::CopyBytes(pinned, tensor.data(), tensor.nbytes());
  const auto exchange = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(runtime.Copy(copy.data(), pinned, copy.nbytes(), stream));
    const StreamScope scope(stream);
    SYNCLINE_RETURN_IF_ERROR(call(copy));
    return runtime.Copy(pinned, copy.data(), copy.nbytes(), stream);
  };
  absl::Status status = exchange();
  KeepUntilDone(stream, buffers);
  SYNCLINE_RETURN_IF_ERROR(status);
  status = runtime.Synchronize(stream, Deadline(group_.timeout()));
  // The device is done, or not, but what it has done is worth nothing if the group has failed.
  SYNCLINE_RETURN_IF_ERROR(group_.status());
  SYNCLINE_RETURN_IF_ERROR(status);
  tensor::CopyBytes(tensor.data(), pinned, tensor.nbytes());
  return absl::OkStatus();
}

absl::Status HostExchange::AllReduce(const Tensor& tensor, ReduceOp op) const {
  if (lane_ == nullptr) return group_.AllReduce(tensor, op);
  return OnDevice(tensor, [&](const Tensor& copy) -> absl::Status {
    // Whoever waits for the work on the host hears of what went wrong.
    SYNCLINE_ASSIGN_OR_RETURN(const auto work, group_.AllReduceAsync(copy, op));
    return work->Synchronize();
  });
}

absl::Status HostExchange::Broadcast(const Tensor& tensor, int root) const {
  if (lane_ == nullptr) return group_.Broadcast(tensor, root);
  return OnDevice(tensor, [&](const Tensor& copy) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto work, group_.BroadcastAsync(copy, root));
    return work->Synchronize();
  });
}

absl::Status HostExchange::GatherParts(const Tensor& all) const {
  const int64_t count = all.numel() / group_.size();
  std::vector<Tensor> parts;
  for (int rank = 0; rank < group_.size(); ++rank) parts.push_back(all.Slice(rank * count, count));
  if (lane_ == nullptr) return group_.AllGather(parts, parts[group_.rank()]);
  SYNCLINE_ASSIGN_OR_RETURN(const auto work, group_.AllGatherAsync(parts, parts[group_.rank()]));
  return work->Synchronize();
}

absl::Status HostExchange::AllGatherInPlace(const Tensor& all) const {
  if (lane_ == nullptr) return GatherParts(all);
  return OnDevice(all, [&](const Tensor& copy) { return GatherParts(copy); });
}

absl::StatusOr<std::vector<std::string>> HostExchange::AllGatherBytes(
    const std::string& mine) const {
  if (lane_ == nullptr) return syncline::AllGatherBytes(group_, mine);
  std::vector<int64_t> sizes(group_.size());
  sizes[group_.rank()] = static_cast<int64_t>(mine.size());
  SYNCLINE_RETURN_IF_ERROR(AllGatherInPlace(Tensor::Of(sizes)));
  const auto ranks = static_cast<int64_t>(sizes.size());
  const auto no_size = [&](std::vector<int64_t>::iterator size) {
    const int rank = static_cast<int>(size - sizes.begin());
    return WithRanks(
        BackendError(absl::StrCat("rank ", rank, " sent ", *size,
                                  " as the size of what it has to say, for which there is no room: "
                                  "do all ranks run the same version of Syncline?")),
        {rank});
  };
  const auto least = std::min_element(sizes.begin(), sizes.end());
  if (*least < 0) return no_size(least);
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  if (*largest > std::numeric_limits<int64_t>::max() / ranks) return no_size(largest);
  const auto all = Tensor::TryZeros(DType::kUInt8, {*largest * ranks});
  if (!all.ok()) return no_size(largest);
  char* const bytes = all->data_as<char>();
  mine.copy(bytes + group_.rank() * *largest, mine.size());
  SYNCLINE_RETURN_IF_ERROR(AllGatherInPlace(*all));
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    texts.emplace_back(bytes + rank * *largest, static_cast<size_t>(sizes[rank]));
  }
  return texts;
}

}  // namespace syncline::ddp
