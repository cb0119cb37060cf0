#include "core/device/cuda_driver.h"

#include <dlfcn.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr char kVariable[] = "SYNCLINE_CUDA_LIBRARY";
constexpr char kDefaultLibrary[] = "libcuda.so.1";

template <typename Function>
void Find(void* handle, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(handle, symbol));
}

}  // namespace

absl::Status CudaDriver::Check(CUresult result, absl::string_view function,
                               absl::string_view where) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return BackendError(
      absl::StrCat(function, where.empty() ? "" : " ", where, " failed: ", Describe(result)));
}

std::string CudaDriver::Describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName == nullptr || cuGetErrorName(result, &name) != CUDA_SUCCESS ||
      name == nullptr) {
    return absl::StrCat("CUDA's error ", static_cast<int>(result));
  }
  if (cuGetErrorString == nullptr || cuGetErrorString(result, &text) != CUDA_SUCCESS ||
      text == nullptr) {
    return name;
  }
  return absl::StrCat(name, " (", text, ")");
}

absl::StatusOr<CudaDriver> OpenCudaDriver() {
  const std::optional<std::string> named = base::GetEnv(kVariable);
  CudaDriver driver;
  driver.library = named.has_value() && !named->empty() ? *named : kDefaultLibrary;
  // Never closed: threads and handlers of the driver outlive any use of it.
  void* const handle = dlopen(driver.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return UnsupportedError(absl::StrCat(
        "there is no CUDA driver: ", reason == nullptr ? "dlopen fails" : reason,
        driver.library == kDefaultLibrary ? absl::StrCat("; ", kVariable, " may name the library")
                                          : absl::StrCat(", which ", kVariable, " names")));
  }
  const auto lacks = [&driver](absl::string_view symbol) {
    return UnsupportedError(absl::StrCat("the CUDA driver ", driver.library, " lacks ", symbol,
                                         ": it is too old, or another library"));
  };
#define SYNCLINE_CUDA_OPTIONAL(name, symbol, parameters) Find(handle, #symbol, driver.name);
#define SYNCLINE_CUDA_ESSENTIAL(name, symbol, parameters) \
  Find(handle, #symbol, driver.name);                     \
  if (driver.name == nullptr) return lacks(#symbol);
  SYNCLINE_CUDA_FUNCTIONS(SYNCLINE_CUDA_ESSENTIAL, SYNCLINE_CUDA_OPTIONAL)
#undef SYNCLINE_CUDA_ESSENTIAL
#undef SYNCLINE_CUDA_OPTIONAL
  return driver;
}

}  // namespace syncline::device
