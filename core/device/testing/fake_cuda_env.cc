#include "core/device/testing/fake_cuda_env.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

namespace syncline::device {
namespace {

constexpr char kVariable[] = "SYNCLINE_CUDA_LIBRARY";

// The folder where Bazel has put what the program needs.
std::string Runfiles() {
  for (const char* name : {"TEST_SRCDIR", "RUNFILES_DIR"}) {
    if (const char* const folder = std::getenv(name); folder != nullptr) return folder;
  }
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  return std::string(program, length < 0 ? 0 : static_cast<size_t>(length)) + ".runfiles";
}

// Before main(), so that no other thread reads the environment.
const bool is_set = [] {
  const std::string path = Runfiles() + "/syncline/core/device/testing/fake_cuda/libfake_cuda.so";
  return setenv(kVariable, path.c_str(), /*overwrite=*/0) == 0;
}();

}  // namespace

bool DevicesAreSimulated() { return true; }

const FakeCuda& FakeCuda::Get() {
  static const auto* const fake = new FakeCuda;
  return *fake;
}

FakeCuda::FakeCuda() : library_(dlopen(std::getenv(kVariable), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    std::fprintf(stderr, "fake_cuda_env: %s\n", dlerror());
    std::abort();
  }
  const auto find = [this](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(Symbol(name));
  };
  find(fail_next, "fake_cuda_fail_next");
  find(calls, "fake_cuda_calls");
  find(each_called, "fake_cuda_each_called");
  find(hold_streams, "fake_cuda_hold_streams");
  find(delay_us, "fake_cuda_delay_us");
  find(free_waits, "fake_cuda_free_waits");
  find(break_device, "fake_cuda_break_device");
  find(live_objects, "fake_cuda_live_objects");
  find(context_depth, "fake_cuda_context_depth");
  find(register_kernel, "fake_cuda_register_kernel");
}

void* FakeCuda::Symbol(const char* name) const {
  void* const symbol = dlsym(library_, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "fake_cuda_env: %s\n", dlerror());
    std::abort();
  }
  return symbol;
}

}  // namespace syncline::device
