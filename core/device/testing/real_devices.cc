// What fake_cuda_env.h says where devices are the machine's: the driver's functions are there,
// those that control simulated devices end the process.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"

namespace syncline::device {
namespace {

template <typename Result, typename... Arguments>
void Refuse(Result (*&function)(Arguments...)) {
  function = [](Arguments...) -> Result {
    std::fprintf(stderr,
                 "this test controls simulated devices, and has none: it lacks "
                 "SYNCLINE_REQUIRE_SIMULATED_DEVICES()\n");
    std::abort();
  };
}

// The library that DeviceRuntime opens.
const char* DriverLibrary() {
  const char* const named = std::getenv("SYNCLINE_CUDA_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

// With SYNCLINE_TEST_KEEP_DEVICE_MEMORY=1 no memory of a device is given back before the process
// ends. Ranks that are threads of one process on one device need that: cuMemFree waits for the
// device, where the kernel of one rank waits for that of another, which cannot be launched
// meanwhile.
const bool kept = [] {
  const char* const keep = std::getenv("SYNCLINE_TEST_KEEP_DEVICE_MEMORY");
  if (keep == nullptr || *keep != '1') return false;
  // Without a thread this one would run the task.
  if (!TaskThread::Releases().Start().ok()) return false;
  TaskThread::Releases().Post({[] {
    while (true) absl::SleepFor(absl::Hours(1));
  }});
  return true;
}();

}  // namespace

// Libraries that are not ours do the work here, and the machine may have no debugger. So a thread
// that ends the process prints its stack, and one that gets SIGUSR1, as those of a test that hangs
// do from tests/gpu/run_tests.py.
void PrintStack(int signal) {
  static constexpr char kTitle[] = "The stack of a thread:\n";
  void* frames[64];
  const int count = backtrace(frames, 64);
  if (write(STDERR_FILENO, kTitle, sizeof(kTitle) - 1) < 0) return;
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  // Blocked until this returns; then, by SA_RESETHAND, it ends the process.
  if (signal != SIGUSR1) raise(signal);
}

const bool prints_stack = [] {
  // The first call loads a library, which a handler of signals must not.
  void* frame;
  backtrace(&frame, 1);
  struct sigaction action = {};
  action.sa_handler = &PrintStack;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    sigaction(signal, &action, nullptr);
  }
  return true;
}();

bool DevicesAreSimulated() { return false; }

const FakeCuda& FakeCuda::Get() {
  static const auto* const fake = new FakeCuda;
  return *fake;
}

FakeCuda::FakeCuda() : library_(dlopen(DriverLibrary(), RTLD_NOW | RTLD_LOCAL)) {
  Refuse(fail_next);
  Refuse(calls);
  Refuse(each_called);
  Refuse(hold_streams);
  Refuse(delay_us);
  Refuse(free_waits);
  Refuse(break_device);
  Refuse(live_objects);
  Refuse(context_depth);
  Refuse(register_kernel);
}

void* FakeCuda::Symbol(const char* name) const {
  void* const symbol = library_ == nullptr ? nullptr : dlsym(library_, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "real_devices: %s\n", dlerror());
    std::abort();
  }
  return symbol;
}

}  // namespace syncline::device
