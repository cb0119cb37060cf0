// Who allocates memory that a communication library has registered.
#ifndef SYNCLINE_CORE_DEVICE_REGISTERED_MEMORY_H_
#define SYNCLINE_CORE_DEVICE_REGISTERED_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "syncline/device.h"

namespace syncline::device {

// Memory of `device`, at least one byte, which is given back when the last owner lets go of it.
// Errors are those of EmptyOnDevice.
using RegisteredAllocator = absl::StatusOr<std::shared_ptr<void>> (*)(const Device& device,
                                                                      size_t bytes);

// Names the allocator behind DeviceMemory::kRegistered: backend nccl does, when the program starts,
// as this package knows no backends.
void SetRegisteredAllocator(RegisteredAllocator allocator);

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_REGISTERED_MEMORY_H_
