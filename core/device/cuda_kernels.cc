#include "core/device/cuda_kernels.h"

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline::device {

absl::StatusOr<std::unique_ptr<Kernels>> MakeCudaKernels(const CudaDriver& driver,
                                                         const Device& device) {
  static_cast<void>(driver);
  return UnsupportedError(
      absl::StrCat("there are no kernels for ", ToString(device), " in this build"));
}

}  // namespace syncline::device
