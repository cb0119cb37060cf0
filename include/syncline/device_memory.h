// Tensors in new memory of a device, for programs whose own library does not allocate it, or
// allocates none that NCCL can register.
#ifndef SYNCLINE_DEVICE_MEMORY_H_
#define SYNCLINE_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline {

// kRegistered: memory of ncclMemAlloc, which each communicator of backend nccl registers when a
// call first uses it (ncclCommRegister). Where the hardware lets it (NVLink SHARP, memory of peers,
// networks with RDMA), NCCL then reads and writes it in place, without buffers of its own, and with
// fewer of the device's cores. It helps if all ranks pass such memory. A call that is captured
// registers nothing: NCCL does so itself then.
enum class DeviceMemory { kPlain, kRegistered };

// A new contiguous tensor on `device`, its elements not set to anything (0 on the CPU), which is
// freed with the last view. What uses it on streams outside of Syncline must have ended by then;
// operations of Syncline keep their tensors. Memory of kRegistered takes whole pages of the device,
// 2 MiB as a rule: make few, and large ones. May wait for the device. Thread-safe.
//
// ArgumentError for an impossible shape, or a device that the process does not have; BackendError
// with the size if there is not so much memory; UnsupportedError that says what is missing: CUDA,
// or for kRegistered NCCL 2.19 or later.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Tensor gradients,
//                             EmptyOnDevice({DeviceType::kCuda, 0}, DType::kFloat32, {1 << 24},
//                                           DeviceMemory::kRegistered));
//   SYNCLINE_RETURN_IF_ERROR(group->AllReduce(gradients));
absl::StatusOr<Tensor> EmptyOnDevice(const Device& device, DType dtype,
                                     absl::Span<const int64_t> shape,
                                     DeviceMemory memory = DeviceMemory::kPlain);

}  // namespace syncline

#endif  // SYNCLINE_DEVICE_MEMORY_H_
