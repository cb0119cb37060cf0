#include "backends/nccl/registered_memory.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/nccl/nccl_library.h"
#include "core/device/registered_memory.h"
#include "core/device/task_thread.h"
#include "syncline/deadline.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// How long an allocation waits for memory that is being given back.
constexpr absl::Duration kReleaseTime = absl::Seconds(10);

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

void Free(const NcclApi& api, device::DeviceRuntime& runtime, const Device& device, void* data) {
  const device::DeviceRuntime::ContextScope context(runtime, device);
  // CUDA does not work in a forked child, whose parent has the memory.
  if (!context.status().ok()) return;
  const device::DeviceRuntime::RelaxedCaptureScope relaxed(runtime);
  const NcclResult result = api.mem_free(data);
  if (result == kNcclSuccess) return;
  Log(LogLevel::kWarning, NcclError(api, "ncclMemFree", result).message());
}

// Of memory of ncclMemAlloc, whose end may wait for all work of the device.
std::shared_ptr<void> OwnerOf(const NcclApi& api, device::DeviceRuntime& runtime,
                              const Device& device, void* data) {
  device::TaskThread& releases = device::TaskThread::Releases();
  device::TaskThread::Tasks tasks;
  tasks.emplace_back([&api, &runtime, device, data] { Free(api, runtime, device, data); });
  return std::shared_ptr<void>(data, [&releases, tasks = std::move(tasks)](void*) mutable {
    releases.Post(std::move(tasks));
  });
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
  // CUDA forbids what this does while another thread captures a graph.
  const device::DeviceRuntime::RelaxedCaptureScope relaxed(*runtime);
  NcclResult result = api->mem_alloc(&data, bytes);
  device::TaskThread& releases = device::TaskThread::Releases();
  if (result != kNcclSuccess && !releases.IsIdle()) {
    releases.AwaitIdle(Deadline(kReleaseTime));
    result = api->mem_alloc(&data, bytes);
  }
  if (result != kNcclSuccess) {
    return Annotate(NcclError(*api, "ncclMemAlloc", result),
                    absl::StrCat("no ", bytes, " bytes of ", ToString(device)));
  }
  auto memory = std::make_shared<RegisteredMemory>(*api, *runtime, device,
                                                   OwnerOf(*api, *runtime, device, data), bytes);
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
  {
    // A child of fork leaves all that its parent has as it is.
    const device::DeviceRuntime::ContextScope context(runtime_, device_);
    if (!context.status().ok()) return;
  }
  absl::MutexLock lock(&mutex_);
  for (const Registration& registration : registrations_) {
    const std::shared_ptr<Communicators> communicators = registration.communicators.lock();
    if (communicators == nullptr || registration.handle == nullptr) continue;
    communicators->Deregister(registration.comm, registration.handle, owner_);
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
  const device::DeviceRuntime::RelaxedCaptureScope relaxed(runtime_);
  void* handle = nullptr;
  const NcclResult result = api_.comm_register(comm, data_, bytes_, &handle);
  if (result != kNcclSuccess) {
    handle = nullptr;
    Log(LogLevel::kWarning, absl::StrCat("NCCL uses ", bytes_, " bytes of ", ToString(device_),
                                         " as any other memory: ",
                                         NcclError(api_, "ncclCommRegister", result).message()));
  }
  if (handle != nullptr) communicators->AddRegistered(comm, handle);
  registrations_.push_back({communicators, comm, handle});
}

}  // namespace syncline::nccl
