// The functions with which tests control the stand-in for NCCL.
#ifndef SYNCLINE_TESTS_BACKENDS_FAKE_NCCL_CONTROL_H_
#define SYNCLINE_TESTS_BACKENDS_FAKE_NCCL_CONTROL_H_

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "backends/nccl/nccl_library.h"
#include "backends/nccl/testing/fake_nccl/fake_nccl.h"

namespace syncline {

// In the library that LoadNccl has found. Ends the process if that is no stand-in.
struct FakeNccl {
  static const FakeNccl& Get() {
    static const FakeNccl* const fake = new FakeNccl;
    return *fake;
  }

  decltype(&fake_nccl_fail_next) fail_next;
  decltype(&fake_nccl_set_async_error) set_async_error;
  decltype(&fake_nccl_set_stalled) set_stalled;
  decltype(&fake_nccl_hold_aborts) hold_aborts;
  decltype(&fake_nccl_hold_operations) hold_operations;
  decltype(&fake_nccl_held_operations) held_operations;
  decltype(&fake_nccl_live_communicators) live_communicators;
  decltype(&fake_nccl_live_registrations) live_registrations;
  decltype(&fake_nccl_live_allocations) live_allocations;
  decltype(&fake_nccl_calls) calls;

 private:
  FakeNccl() {
    const auto api = nccl::LoadNccl();
    library_ = api.ok() ? dlopen((*api)->path.c_str(), RTLD_NOW | RTLD_NOLOAD) : nullptr;
    Find(fail_next, "fake_nccl_fail_next");
    Find(set_async_error, "fake_nccl_set_async_error");
    Find(set_stalled, "fake_nccl_set_stalled");
    Find(hold_aborts, "fake_nccl_hold_aborts");
    Find(hold_operations, "fake_nccl_hold_operations");
    Find(held_operations, "fake_nccl_held_operations");
    Find(live_communicators, "fake_nccl_live_communicators");
    Find(live_registrations, "fake_nccl_live_registrations");
    Find(live_allocations, "fake_nccl_live_allocations");
    Find(calls, "fake_nccl_calls");
  }

  template <typename Function>
  void Find(Function& function, const char* name) {
    void* const symbol = library_ != nullptr ? dlsym(library_, name) : nullptr;
    if (symbol == nullptr) {
      std::fprintf(stderr, "the stand-in for NCCL has no %s\n", name);
      std::abort();
    }
    function = reinterpret_cast<Function>(symbol);
  }

  void* library_ = nullptr;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_FAKE_NCCL_CONTROL_H_
