// Memory, copies and fills.
#include <cstdlib>
#include <cstring>

#include "core/device/testing/fake_cuda/call.h"
#include "core/device/testing/fake_cuda/protection.h"

using namespace fake_cuda;  // NOLINT: defines the C functions below.

namespace {

// What new memory holds, so that a test sees a read of what nobody has written.
constexpr unsigned char kGarbage = 0xA5;

// Memory that an item of a stream uses. `id` is 0 for memory of the host that CUDA does not know.
struct Range {
  uintptr_t address = 0;
  size_t bytes = 0;
  uint64_t id = 0;
  MemoryKind kind = MemoryKind::kRegistered;
};

// The range as it is when an item is enqueued; false if it goes beyond its allocation.
bool Resolve(const Simulator& simulator, CUdeviceptr address, size_t bytes, Range* range) {
  bool is_known = false;
  *range = {static_cast<uintptr_t>(address), bytes};
  const Allocation* const found = simulator.Find(range->address, bytes, &is_known);
  if (found == nullptr) return !is_known && address != 0;
  range->id = found->id;
  range->kind = found->kind;
  return true;
}

// Whether the memory is still there when the item runs.
bool IsThere(const Simulator& simulator, const Range& range) {
  if (range.id == 0) return true;
  bool is_known = false;
  const Allocation* const found = simulator.Find(range.address, range.bytes, &is_known);
  return found != nullptr && found->id == range.id;
}

// Work on ranges; the device is broken if one is not there any more.
template <typename Body>
std::function<void()> OnRanges(int device, std::vector<Range> ranges, Body body) {
  return [device, ranges = std::move(ranges), body] {
    Simulator& simulator = Simulator::Get();
    {
      const Lock lock(simulator.mutex);
      for (const Range& range : ranges) {
        if (!IsThere(simulator, range)) {
          simulator.devices[device].error = CUDA_ERROR_ILLEGAL_ADDRESS;
          return;
        }
      }
    }
    body();
  };
}

CUresult Allocate(Simulator& simulator, size_t bytes, MemoryKind kind, int device, void** address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  // Not rounded up, so that the address sanitizer sees each byte beyond the end.
  const bool is_protected = kind == MemoryKind::kDevice && Protects();
  if (is_protected) {
    *address = MapPages(bytes);
    if (*address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  } else if (posix_memalign(address, 256, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::memset(*address, kGarbage, bytes);
  simulator.memory[reinterpret_cast<uintptr_t>(*address)] = {simulator.NewHandle(), bytes, kind,
                                                             device};
  if (is_protected) Protect(*address, bytes);
  return CUDA_SUCCESS;
}

bool IsOfDevice(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged;
}

// Frees what was allocated at `address`, which must be of the device or not, as `of_device` says.
// What still uses the memory is an error, unless FAKE_CUDA_FREE_WAITS has this wait for it.
CUresult Free(Call& call, uintptr_t address, bool of_device) {
  Simulator& simulator = call.simulator();
  if (simulator.free_waits) {
    for (const PointPtr& end : simulator.EndsOn(call.device())) end->Await(call.lock());
  }
  const auto found = simulator.memory.find(address);
  if (found == simulator.memory.end() || found->second.kind == MemoryKind::kRegistered ||
      IsOfDevice(found->second.kind) != of_device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found->second.kind == MemoryKind::kDevice && Protects()) {
    UnmapPages(reinterpret_cast<void*>(address), found->second.bytes);
  } else {
    std::free(reinterpret_cast<void*>(address));
  }
  simulator.memory.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  FAKE_CUDA_BEGIN(kNoCapture);
  void* memory = nullptr;
  const CUresult result = Allocate(simulator, bytes, MemoryKind::kDevice, call.device(), &memory);
  if (result == CUDA_SUCCESS) *address = reinterpret_cast<CUdeviceptr>(memory);
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  FAKE_CUDA_BEGIN(kNoCapture);
  if (flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
  void* memory = nullptr;
  const CUresult result = Allocate(simulator, bytes, MemoryKind::kManaged, call.device(), &memory);
  if (result == CUDA_SUCCESS) *address = reinterpret_cast<CUdeviceptr>(memory);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  FAKE_CUDA_BEGIN(kNoCapture);
  if (address == 0) return CUDA_SUCCESS;
  return Free(call, static_cast<uintptr_t>(address), true);
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  FAKE_CUDA_BEGIN(kNoCapture);
  if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(simulator, bytes, MemoryKind::kPinned, call.device(), address);
}

CUresult cuMemFreeHost(void* address) {
  FAKE_CUDA_BEGIN(kNoCapture);
  return Free(call, reinterpret_cast<uintptr_t>(address), false);
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned int flags) {
  FAKE_CUDA_BEGIN(kNoCapture);
  static_cast<void>(flags);
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto next = simulator.memory.lower_bound(start);
  bool is_known = false;
  simulator.Find(start, bytes, &is_known);
  if (is_known || (next != simulator.memory.end() && next->first < start + bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  simulator.memory[start] = {simulator.NewHandle(), bytes, MemoryKind::kRegistered, call.device()};
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
  FAKE_CUDA_BEGIN(kNoCapture);
  const auto found = simulator.memory.find(reinterpret_cast<uintptr_t>(address));
  if (found == simulator.memory.end() || found->second.kind != MemoryKind::kRegistered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  simulator.memory.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  FAKE_CUDA_BEGIN(kInit);
  bool is_known = false;
  const Allocation* const found = simulator.Find(static_cast<uintptr_t>(address), 1, &is_known);
  for (unsigned int i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<int*>(values[i]) = found == nullptr          ? 0
                                        : IsOfDevice(found->kind) ? CU_MEMORYTYPE_DEVICE
                                                                  : CU_MEMORYTYPE_HOST;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<int*>(values[i]) =
            found != nullptr && found->kind == MemoryKind::kManaged ? 1 : 0;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(values[i]) = found == nullptr ? -2 : found->device;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  {
    FAKE_CUDA_BEGIN(kInit);
    bool is_known = false;
    simulator.Find(static_cast<uintptr_t>(address), 1, &is_known);
    if (!is_known) return CUDA_ERROR_INVALID_VALUE;
  }
  return cuPointerGetAttributes(1, &attribute, &value, address);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CUDA_BEGIN(kContext);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  Range target;
  Range source;
  if (!Resolve(simulator, to, bytes, &target) || !Resolve(simulator, from, bytes, &source)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Submit(simulator, found, OnRanges(found->device, {target, source}, [target, source] {
                  std::memcpy(reinterpret_cast<void*>(target.address),
                              reinterpret_cast<const void*>(source.address), target.bytes);
                }));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  FAKE_CUDA_BEGIN(kContext);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  Range target;
  if (!Resolve(simulator, to, bytes, &target) || target.id == 0) return CUDA_ERROR_INVALID_VALUE;
  return Submit(simulator, found, OnRanges(found->device, {target}, [target, value] {
                  std::memset(reinterpret_cast<void*>(target.address), value, target.bytes);
                }));
}

}  // extern "C"
