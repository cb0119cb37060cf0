#include "python/gil.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline::python {
namespace {

// Where threads of C++ enter Python. Closed when Python begins to exit: a thread that asked for
// the GIL later would be killed in the middle of C++ code.
class Gate {
 public:
  bool Enter() {
    ++inside_;
    if (!closed_) return true;
    --inside_;
    return false;
  }

  void Leave() { --inside_; }

  // Returns when nobody is inside. Those who are may still need the GIL, but not for long.
  void Close() {
    GilReleased released;
    closer_ = std::this_thread::get_id();
    closed_ = true;
    while (inside_ > 0) absl::SleepFor(absl::Milliseconds(1));
  }

  bool IsClosedToThisThread() const { return closed_ && closer_ != std::this_thread::get_id(); }

 private:
  std::atomic<int> inside_ = 0;
  std::atomic<bool> closed_ = false;
  std::thread::id closer_;  // Written before closed_, read after it.
};

Gate& TheGate() {
  static auto* const gate = new Gate;
  return *gate;
}

bool IsFinalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

bool HoldsGil() { return !TheGate().IsClosedToThisThread() && PyGILState_Check() != 0; }

GilReleased::~GilReleased() {
  // Python would end this thread here, by an exception that C++ cannot unwind.
  while (IsFinalizing() && TheGate().IsClosedToThisThread()) pause();
  PyEval_RestoreThread(state_);
}

bool WithGil(absl::FunctionRef<void()> action) {
  if (HoldsGil()) {
    action();
    return true;
  }
  if (!TheGate().Enter()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  action();
  PyGILState_Release(state);
  TheGate().Leave();
  return true;
}

void InstallExitHook() {
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function([] { TheGate().Close(); }));
}

absl::Status CheckSignals() {
  bool raised = false;
  WithGil([&raised] { raised = PyErr_CheckSignals() != 0; });
  return raised ? absl::CancelledError("interrupted by a signal") : absl::OkStatus();
}

}  // namespace syncline::python
