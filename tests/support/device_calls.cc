#include "tests/support/device_calls.h"

#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "syncline/deadline.h"
#include "syncline/device_memory.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

}  // namespace

absl::StatusOr<Device> DeviceOfRank(int rank) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  return Device{DeviceType::kCuda, rank % runtime->device_count()};
}

absl::StatusOr<Tensor> DeviceTensors::Of(const Tensor& host) {
  for (const auto& [known, made] : pairs_) {
    if (host.nbytes() > 0 && known.data() == host.data() && known.nbytes() == host.nbytes()) {
      return made;
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(Tensor made, EmptyOnDevice(device_, host.dtype(), host.shape()));
  if (host.nbytes() > 0) {
    SYNCLINE_RETURN_IF_ERROR(
        runtime->Copy(made.data(), host.data(), host.nbytes(), CurrentStream(device_)));
  }
  pairs_.push_back({host, made});
  return made;
}

absl::StatusOr<std::vector<Tensor>> DeviceTensors::Of(absl::Span<const Tensor> host) {
  std::vector<Tensor> made;
  for (const Tensor& tensor : host) {
    SYNCLINE_ASSIGN_OR_RETURN(made.emplace_back(), Of(tensor));
  }
  return made;
}

absl::StatusOr<Collective> DeviceTensors::Of(const Collective& host) {
  Collective call = host;
  if (host.tensor != nullptr && host.kind != OpKind::kBarrier) {
    SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, Of(*host.tensor));
    call.OwnTensor(std::move(tensor));
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Tensor> outputs, Of(host.outputs));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Tensor> inputs, Of(host.inputs));
  call.OwnOutputs(std::move(outputs));
  call.OwnInputs(std::move(inputs));
  return call;
}

absl::Status DeviceTensors::Synchronize() const {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  return runtime->Synchronize(CurrentStream(device_), Deadline(kTimeout));
}

absl::Status DeviceTensors::CopyBack() const {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  const Stream stream = CurrentStream(device_);
  SYNCLINE_RETURN_IF_ERROR(Synchronize());
  for (const auto& [host, made] : pairs_) {
    if (host.nbytes() == 0) continue;
    SYNCLINE_RETURN_IF_ERROR(runtime->Copy(host.data(), made.data(), host.nbytes(), stream));
  }
  return Synchronize();
}

}  // namespace syncline
