#include "python/extension/gil.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/check.h"
#include "syncline/interrupt.h"

namespace syncline::python {
namespace {

// Where threads take the GIL in C++. Closed when Python begins to exit: a thread that asked for the
// GIL later would be killed in the middle of C++ code.
class Gate {
 public:
  // False if the gate is closed to this thread. Else Leave follows.
  bool Enter() {
    ++inside_;
    if (!IsClosedToThisThread()) return true;
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

  // In a child of fork, which has one thread.
  void ResetInChild(bool is_inside) { inside_ = is_inside ? 1 : 0; }

  bool IsClosedToThisThread() const { return closed_ && closer_ != std::this_thread::get_id(); }

 private:
  std::atomic<int> inside_ = 0;
  std::atomic<bool> closed_ = false;
  std::thread::id closer_;  // Written before closed_, read after it.
};

// Whether this thread runs an action of WithGil that it has entered the gate for.
thread_local bool acts = false;

Gate& TheGate() {
  static auto* const gate = new Gate;
  return *gate;
}

unsigned long main_thread = 0;  // Python's ident of it. Written once, while the module is imported.

// Other threads need not ask for the GIL: Python runs handlers of signals on this one only. In a
// child of fork() it is the one that forked.
bool IsMainThread() {
  return PyThread_get_thread_ident() == main_thread || syscall(SYS_gettid) == getpid();
}

PyThreadState* SaveThread() {
  // Not HoldsGil, which is false on other threads once Python has begun to exit.
  SYNCLINE_DCHECK(PyGILState_Check() != 0);
  return PyEval_SaveThread();
}

}  // namespace

bool HoldsGil() { return !TheGate().IsClosedToThisThread() && PyGILState_Check() != 0; }

GilReleased::GilReleased() : state_(SaveThread()) {}

GilReleased::~GilReleased() {
  // Python, once it exits, would end this thread here by an exception that C++ cannot unwind.
  if (!TheGate().Enter()) {
    while (true) pause();
  }
  PyEval_RestoreThread(state_);
  TheGate().Leave();
}

bool WithGil(absl::FunctionRef<void()> action) {
  if (HoldsGil()) {
    action();
    return true;
  }
  if (!TheGate().Enter()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  acts = true;
  action();
  acts = false;
  PyGILState_Release(state);
  TheGate().Leave();
  return true;
}

void InstallExitHook() {
  main_thread = pybind11::module_::import("threading")
                    .attr("main_thread")()
                    .attr("ident")
                    .cast<unsigned long>();
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function([] { TheGate().Close(); }));
  pthread_atfork(nullptr, nullptr, [] { TheGate().ResetInChild(acts); });
}

absl::Status CheckSignals() {
  if (!IsMainThread()) return absl::OkStatus();
  bool raised = false;
  WithGil([&raised] { raised = PyErr_CheckSignals() != 0; });
  return raised ? InterruptedError("interrupted by a signal") : absl::OkStatus();
}

}  // namespace syncline::python
