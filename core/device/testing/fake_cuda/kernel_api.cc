// Images, and kernels by their names.
#include <cstring>
#include <utility>

#include "core/device/testing/fake_cuda/call.h"

using namespace fake_cuda;  // NOLINT: defines the C functions below.

namespace {

// The first bytes of a fat binary, as nvcc makes it.
constexpr unsigned int kFatBinary = 0xBA55ED50;

CUresult CheckImage(const Simulator& simulator, const void* image) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned int magic = 0;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic != kFatBinary) return CUDA_ERROR_INVALID_IMAGE;
  return simulator.version < 13000 ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_SUCCESS;
}

template <typename Handle>
CUresult Load(Simulator& simulator, const void* image, Handle* handle) {
  if (const CUresult refused = CheckImage(simulator, image)) return refused;
  const uintptr_t made = simulator.NewHandle();
  simulator.libraries[made] = true;
  *handle = reinterpret_cast<Handle>(made);
  return CUDA_SUCCESS;
}

template <typename Handle>
CUresult Unload(Simulator& simulator, Handle handle) {
  const bool was_there = simulator.libraries.erase(reinterpret_cast<uintptr_t>(handle)) != 0;
  return was_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

template <typename Handle, typename KernelHandle>
CUresult FindKernel(Simulator& simulator, Handle handle, const char* name, KernelHandle* kernel) {
  if (simulator.libraries.count(reinterpret_cast<uintptr_t>(handle)) == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto found = simulator.kernels.find(name);
  if (found == simulator.kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<KernelHandle>(found->second.get());
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int* jit_options,
                           void** jit_values, unsigned int num_jit_options, int* options,
                           void** values, unsigned int num_options) {
  FAKE_CUDA_BEGIN(kInit);
  static_cast<void>(jit_options);
  static_cast<void>(jit_values);
  static_cast<void>(options);
  static_cast<void>(values);
  if (num_jit_options != 0 || num_options != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return Load(simulator, image, library);
}

CUresult cuLibraryUnload(CUlibrary library) {
  FAKE_CUDA_BEGIN(kInit);
  return Unload(simulator, library);
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  FAKE_CUDA_BEGIN(kInit);
  return FindKernel(simulator, library, name, kernel);
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  FAKE_CUDA_BEGIN(kContext);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_CUDA_BEGIN(kContext);
  return Load(simulator, image, module);
}

CUresult cuModuleUnload(CUmodule module) {
  FAKE_CUDA_BEGIN(kContext);
  return Unload(simulator, module);
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FAKE_CUDA_BEGIN(kContext);
  return FindKernel(simulator, module, name, function);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void** arguments, void** extra) {
  FAKE_CUDA_BEGIN(kContext);
  const StreamPtr found = call.Find(stream);
  const Kernel* kernel = nullptr;
  for (const auto& [name, known] : simulator.kernels) {
    if (known.get() == reinterpret_cast<const Kernel*>(function)) kernel = known.get();
  }
  if (found == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // A launch of another device's stream is an error, as its kernels are those of this context.
  if (found->device != call.device()) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024 ||
      grid_y > 65535 || grid_z > 65535 || shared_bytes > 48 << 10 || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The arguments are copied now: the caller's may be gone when the kernel runs.
  std::vector<std::vector<char>> values;
  for (size_t i = 0; i < kernel->sizes.size(); ++i) {
    const char* const value = static_cast<const char*>(arguments[i]);
    values.emplace_back(value, value + kernel->sizes[i]);
  }
  return Submit(simulator, found, [=, function = kernel->function, values = std::move(values)] {
    const unsigned int grid[3] = {grid_x, grid_y, grid_z};
    const unsigned int block[3] = {block_x, block_y, block_z};
    std::vector<void*> pointers;
    for (const std::vector<char>& value : values) {
      pointers.push_back(const_cast<char*>(value.data()));
    }
    function(grid, block, pointers.data());
  });
}

}  // extern "C"
