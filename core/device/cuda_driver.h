// The functions of CUDA's driver library, which is opened at run time.
#ifndef SYNCLINE_CORE_DEVICE_CUDA_DRIVER_H_
#define SYNCLINE_CORE_DEVICE_CUDA_DRIVER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/device/cuda_types.h"

namespace syncline::device {

// What a driver library offers. A value; the library stays open for as long as the process lives.
//
//   SYNCLINE_RETURN_IF_ERROR(
//       driver.Check(driver.cuEventRecord(event, stream), "cuEventRecord", "on cuda:0"));
struct CudaDriver {
  // What the library was opened as, for messages.
  std::string library;

  // The functions by CUDA's names. Those that are optional are null where the driver lacks them.
#define SYNCLINE_CUDA_MEMBER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  SYNCLINE_CUDA_FUNCTIONS(SYNCLINE_CUDA_MEMBER, SYNCLINE_CUDA_MEMBER)
#undef SYNCLINE_CUDA_MEMBER

  // OK for CUDA_SUCCESS, else a BackendError such as "cuMemAlloc of 12 bytes on cuda:0 failed:
  // CUDA_ERROR_OUT_OF_MEMORY (out of memory)". `where` may be empty.
  absl::Status Check(CUresult result, absl::string_view function,
                     absl::string_view where = {}) const;

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  std::string Describe(CUresult result) const;
};

// Opens the driver library: the one that SYNCLINE_CUDA_LIBRARY names, if it is set, else
// libcuda.so.1, which is the one that the process has loaded already if it has. UnsupportedError
// that says why it cannot be opened, or which essential function it lacks. Initializes nothing.
absl::StatusOr<CudaDriver> OpenCudaDriver();

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_CUDA_DRIVER_H_
