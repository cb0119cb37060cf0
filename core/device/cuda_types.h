// CUDA's driver API, as far as Syncline uses it: types, constants and the list of functions, in our
// own declarations, so that no header of CUDA is needed. Names and values are CUDA's.
#ifndef SYNCLINE_CORE_DEVICE_CUDA_TYPES_H_
#define SYNCLINE_CORE_DEVICE_CUDA_TYPES_H_

#include <cstddef>

namespace syncline::device {

using CUdevice = int;
using CUdeviceptr = unsigned long long;  // NOLINT: CUDA's type.
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUlibrary = struct CUlib_st*;
using CUmodule = struct CUmod_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUhostFn = void (*)(void* data);

// Enumerations of CUDA have the size of int.
enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,     // CUmemorytype.
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,      // bool.
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,  // int.
};

enum CUmemorytype : int {  // 0: not known to CUDA.
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
};

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

inline constexpr unsigned int CU_STREAM_DEFAULT = 0;
inline constexpr unsigned int CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned int CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned int CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned int CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned int CU_MEM_ATTACH_GLOBAL = 1;

// Streams that are not made: values of CUstream.
inline constexpr unsigned long CU_STREAM_LEGACY = 1;      // NOLINT: as wide as a pointer.
inline constexpr unsigned long CU_STREAM_PER_THREAD = 2;  // NOLINT

// Calls ESSENTIAL or OPTIONAL with each function: its name, the symbol that libcuda.so.1 exports
// for the form of it that is declared here, and its parameters. All return CUresult. Drivers since
// CUDA 10.0 have the essential ones.
#define SYNCLINE_CUDA_FUNCTIONS(ESSENTIAL, OPTIONAL)                                              \
  ESSENTIAL(cuInit, cuInit, (unsigned int flags))                                                 \
  ESSENTIAL(cuDriverGetVersion, cuDriverGetVersion, (int* version))                               \
  ESSENTIAL(cuDeviceGetCount, cuDeviceGetCount, (int* count))                                     \
  ESSENTIAL(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                           \
  OPTIONAL(cuDeviceGetAttribute, cuDeviceGetAttribute,                                            \
           (int* value, CUdevice_attribute attribute, CUdevice device))                           \
  OPTIONAL(cuDeviceGetName, cuDeviceGetName, (char* name, int length, CUdevice device))           \
  OPTIONAL(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char* id, int length, CUdevice device))     \
  OPTIONAL(cuGetErrorName, cuGetErrorName, (CUresult error, const char** name))                   \
  OPTIONAL(cuGetErrorString, cuGetErrorString, (CUresult error, const char** text))               \
  ESSENTIAL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                                   \
            (CUcontext * context, CUdevice device))                                               \
  ESSENTIAL(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context))                           \
  ESSENTIAL(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * context))                           \
  ESSENTIAL(cuCtxGetDevice, cuCtxGetDevice, (CUdevice * device))                                  \
  OPTIONAL(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int* least, int* greatest)) \
  ESSENTIAL(cuStreamCreateWithPriority, cuStreamCreateWithPriority,                               \
            (CUstream * stream, unsigned int flags, int priority))                                \
  ESSENTIAL(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                               \
  ESSENTIAL(cuStreamWaitEvent, cuStreamWaitEvent,                                                 \
            (CUstream stream, CUevent event, unsigned int flags))                                 \
  OPTIONAL(cuStreamGetCtx, cuStreamGetCtx, (CUstream stream, CUcontext * context))                \
  OPTIONAL(cuStreamIsCapturing, cuStreamIsCapturing,                                              \
           (CUstream stream, CUstreamCaptureStatus * status))                                     \
  OPTIONAL(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,                  \
           (CUstreamCaptureMode * mode))                                                          \
  ESSENTIAL(cuEventCreate, cuEventCreate, (CUevent * event, unsigned int flags))                  \
  ESSENTIAL(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                   \
  ESSENTIAL(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                       \
  ESSENTIAL(cuEventQuery, cuEventQuery, (CUevent event))                                          \
  ESSENTIAL(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                     \
  ESSENTIAL(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                                       \
  ESSENTIAL(cuMemHostAlloc, cuMemHostAlloc, (void** address, size_t bytes, unsigned int flags))   \
  ESSENTIAL(cuMemFreeHost, cuMemFreeHost, (void* address))                                        \
  ESSENTIAL(cuMemcpyAsync, cuMemcpyAsync,                                                         \
            (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                    \
  ESSENTIAL(cuMemsetD8Async, cuMemsetD8Async,                                                     \
            (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))                 \
  ESSENTIAL(                                                                                      \
      cuPointerGetAttributes, cuPointerGetAttributes,                                             \
      (unsigned int count, CUpointer_attribute* attributes, void** values, CUdeviceptr address))  \
  OPTIONAL(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data))  \
  OPTIONAL(cuLaunchKernel, cuLaunchKernel,                                                        \
           (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,   \
            unsigned int block_x, unsigned int block_y, unsigned int block_z,                     \
            unsigned int shared_bytes, CUstream stream, void** arguments, void** extra))          \
  OPTIONAL(cuLibraryLoadData, cuLibraryLoadData,                                                  \
           (CUlibrary * library, const void* image, int* jit_options, void** jit_values,          \
            unsigned int num_jit_options, int* options, void** values, unsigned int num_options)) \
  OPTIONAL(cuLibraryUnload, cuLibraryUnload, (CUlibrary library))                                 \
  OPTIONAL(cuLibraryGetKernel, cuLibraryGetKernel,                                                \
           (CUkernel * kernel, CUlibrary library, const char* name))                              \
  OPTIONAL(cuKernelGetFunction, cuKernelGetFunction, (CUfunction * function, CUkernel kernel))    \
  OPTIONAL(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void* image))            \
  OPTIONAL(cuModuleUnload, cuModuleUnload, (CUmodule module))                                     \
  OPTIONAL(cuModuleGetFunction, cuModuleGetFunction,                                              \
           (CUfunction * function, CUmodule module, const char* name))

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_CUDA_TYPES_H_
