// Memory of ncclMemAlloc, which communicators register when a call first uses it.
#ifndef SYNCLINE_BACKENDS_NCCL_REGISTERED_MEMORY_H_
#define SYNCLINE_BACKENDS_NCCL_REGISTERED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/nccl_api.h"
#include "core/device/device_runtime.h"
#include "syncline/collective.h"
#include "syncline/device.h"

namespace syncline::nccl {

// One piece of memory, and where it is registered. It is destroyed with the last tensor, by any
// thread, before or after the groups whose communicators have registered it. Those that have not
// ended deregister it, each on the thread that uses the communicator if there is one; the others
// have done so when their rank left, or NCCL when they were aborted. Then TaskThread::Releases()
// frees it. Thread-safe.
class RegisteredMemory {
 public:
  // Memory of `device`; see device::RegisteredAllocator.
  static absl::StatusOr<std::shared_ptr<void>> Allocate(const Device& device, size_t bytes);

  // Has the communicator, of which this thread has a UseScope, register what of the operation's
  // tensors lies in such memory, if it has not yet. NCCL need not know the memory, so its refusal
  // is logged, once, and is no error. Costs a load where the process has no such memory.
  static void RegisterTensorsOf(const Collective& collective,
                                const std::shared_ptr<Communicators>& communicators,
                                const Communicator& communicator);

  // `owner` gives `bytes` bytes back.
  RegisteredMemory(const NcclApi& api, device::DeviceRuntime& runtime, const Device& device,
                   std::shared_ptr<void> owner, size_t bytes)
      : api_(api),
        runtime_(runtime),
        device_(device),
        owner_(std::move(owner)),
        data_(owner_.get()),
        bytes_(bytes) {}
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

 private:
  struct Registration {
    std::weak_ptr<Communicators> communicators;
    NcclComm comm;
    void* handle;  // Null if NCCL has refused.
  };

  bool Holds(const void* address) const {
    const char* const begin = static_cast<const char*>(data_);
    return address >= begin && address < begin + bytes_;
  }
  void RegisterWith(const std::shared_ptr<Communicators>& communicators, NcclComm comm);

  const NcclApi& api_;
  device::DeviceRuntime& runtime_;
  const Device device_;
  const std::shared_ptr<void> owner_;
  void* const data_;
  const size_t bytes_;

  absl::Mutex mutex_;
  std::vector<Registration> registrations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_REGISTERED_MEMORY_H_
