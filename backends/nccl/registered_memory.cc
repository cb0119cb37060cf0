#include "backends/nccl/registered_memory.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/nccl/nccl_library.h"
#include "core/device/registered_memory.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// All of such memory that the process has, by address. Never destroyed: tensors may outlive main.
struct Known {
  std::atomic<int> count{0};
  absl::Mutex mutex;
  std::map<const void*, std::weak_ptr<RegisteredMemory>> by_address ABSL_GUARDED_BY(mutex);
};

Known& AllKnown() {
  static Known* const known = new Known;
  return *known;
}

// The memory that begins at or before `address` and nearest to it, if it is still there.
std::shared_ptr<RegisteredMemory> FindBefore(const void* address) {
  Known& known = AllKnown();
  absl::MutexLock lock(&known.mutex);
  const auto after = known.by_address.upper_bound(address);
  return after == known.by_address.begin() ? nullptr : std::prev(after)->second.lock();
}

// For programs that are linked with this backend.
const bool is_allocator_set = [] {
  device::SetRegisteredAllocator(&RegisteredMemory::Allocate);
  return true;
}();

}  // namespace

absl::StatusOr<std::shared_ptr<void>> RegisteredMemory::Allocate(const Device& device,
                                                                 size_t bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const NcclApi* const api, LoadNccl());
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  if (api->mem_alloc == nullptr || api->mem_free == nullptr) {
    return UnsupportedError(
        absl::StrCat("registered memory needs NCCL 2.19 or later, and this is ", Describe(*api)));
  }
  const device::DeviceRuntime::ContextScope context(*runtime, device);
  SYNCLINE_RETURN_IF_ERROR(context.status());
  void* data = nullptr;
  const NcclResult result = api->mem_alloc(&data, bytes);
  if (result != kNcclSuccess) {
    return Annotate(NcclError(*api, "ncclMemAlloc", result),
                    absl::StrCat("no ", bytes, " bytes of ", ToString(device)));
  }
  auto memory = std::make_shared<RegisteredMemory>(*api, *runtime, device, data, bytes);
  Known& known = AllKnown();
  {
    absl::MutexLock lock(&known.mutex);
    known.by_address[data] = memory;
  }
  known.count.fetch_add(1);
  return std::shared_ptr<void>(std::move(memory), data);
}

RegisteredMemory::~RegisteredMemory() {
  Known& known = AllKnown();
  {
    absl::MutexLock lock(&known.mutex);
    known.by_address.erase(data_);
  }
  known.count.fetch_sub(1);
  // CUDA does not work in a forked child, whose parent has the memory.
  const device::DeviceRuntime::ContextScope context(runtime_, device_);
  if (!context.status().ok()) return;
  absl::MutexLock lock(&mutex_);
  for (const Registration& registration : registrations_) {
    const std::shared_ptr<Communicators> communicators = registration.communicators.lock();
    if (communicators == nullptr || registration.handle == nullptr) continue;
    const Communicators::CallScope scope(*communicators, device_);
    // Communicators that have ended have let go of it.
    if (!scope.status().ok()) continue;
    const NcclResult result = api_.comm_deregister(registration.comm, registration.handle);
    if (result == kNcclSuccess) continue;
    Log(LogLevel::kWarning, NcclError(api_, "ncclCommDeregister", result).message());
  }
  const NcclResult result = api_.mem_free(data_);
  if (result != kNcclSuccess) {
    Log(LogLevel::kWarning, NcclError(api_, "ncclMemFree", result).message());
  }
}

void RegisteredMemory::RegisterTensorsOf(const Collective& collective,
                                         const std::shared_ptr<Communicators>& communicators,
                                         const Communicator& communicator) {
  if (AllKnown().count.load(std::memory_order_relaxed) == 0) return;
  const auto register_memory_of = [&](const Tensor& tensor) {
    const std::shared_ptr<RegisteredMemory> memory = FindBefore(tensor.data());
    // A message of another device is copied to the communicator's.
    if (memory == nullptr || !memory->Holds(tensor.data()) ||
        memory->device_ != communicator.device) {
      return;
    }
    memory->RegisterWith(communicators, communicator.comm);
  };
  if (collective.tensor != nullptr) register_memory_of(*collective.tensor);
  for (const Tensor& tensor : collective.inputs) register_memory_of(tensor);
  for (const Tensor& tensor : collective.outputs) register_memory_of(tensor);
}

void RegisteredMemory::RegisterWith(const std::shared_ptr<Communicators>& communicators,
                                    NcclComm comm) {
  if (api_.comm_register == nullptr || api_.comm_deregister == nullptr) return;
  absl::MutexLock lock(&mutex_);
  const auto has_ended = [](const Registration& it) { return it.communicators.expired(); };
  registrations_.erase(std::remove_if(registrations_.begin(), registrations_.end(), has_ended),
                       registrations_.end());
  for (const Registration& it : registrations_) {
    // By owner: the address of a communicator that has ended may be that of another group's.
    if (it.comm == comm && !it.communicators.owner_before(communicators) &&
        !communicators.owner_before(it.communicators)) {
      return;
    }
  }
  const Communicators::CallScope scope(*communicators, device_);
  if (!scope.status().ok()) return;
  void* handle = nullptr;
  const NcclResult result = api_.comm_register(comm, data_, bytes_, &handle);
  if (result != kNcclSuccess) {
    handle = nullptr;
    Log(LogLevel::kWarning, absl::StrCat("NCCL uses ", bytes_, " bytes of ", ToString(device_),
                                         " as any other memory: ",
                                         NcclError(api_, "ncclCommRegister", result).message()));
  }
  registrations_.push_back({communicators, comm, handle});
}

}  // namespace syncline::nccl
