// Operations on tensors of the host in a group that may have no backend for them.
#ifndef SYNCLINE_DDP_HOST_EXCHANGE_H_
#define SYNCLINE_DDP_HOST_EXCHANGE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddp/device_lane.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Whether `group` carries out operations on tensors of the host.
bool ServesHost(const ProcessGroup& group);

// Small collectives on tensors of the host, which return when they are done. In a group that serves
// the tensors of devices alone they go through memory of the device, for which the host waits, up
// to the group's timeout. The group and the lane must outlive it.
class HostExchange {
 public:
  // `lane` may be null if the group serves the host.
  HostExchange(ProcessGroup& group, const DeviceLane* lane)
      : group_(group), lane_(ServesHost(group) ? nullptr : lane) {}

  const ProcessGroup& group() const { return group_; }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  absl::Status Broadcast(const Tensor& tensor, int root) const;
  // `outputs` are the parts of `all`, one behind the other, one for each rank; this rank's holds
  // its own.
  absl::Status AllGatherInPlace(const Tensor& all) const;
  // The texts of all ranks.
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(const std::string& mine) const;

 private:
  // Runs `call` on a copy of `tensor` in memory of the device, and copies that back. An error ends
  // the group.
  absl::Status OnDevice(const Tensor& tensor,
                        absl::FunctionRef<absl::Status(const Tensor& copy)> call) const;
  absl::Status OnDeviceHere(const Tensor& tensor,
                            absl::FunctionRef<absl::Status(const Tensor& copy)> call) const;
  absl::Status GatherParts(const Tensor& all) const;

  ProcessGroup& group_;
  const DeviceLane* const lane_;  // Null if the group serves the host.
};

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOST_EXCHANGE_H_
