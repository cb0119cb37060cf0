// The interpreter's lock (GIL), seen from calls into C++ and from threads of C++.
#ifndef SYNCLINE_PYTHON_EXTENSION_GIL_H_
#define SYNCLINE_PYTHON_EXTENSION_GIL_H_

#include <Python.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace syncline::python {

// Whether this thread holds the GIL. May be asked at any time, also after the interpreter's end.
bool HoldsGil();

// Lets other Python threads run for as long as it lives. Requires the GIL.
class GilReleased {
 public:
  GilReleased();
  ~GilReleased();  // Once Python exits, never returns on another than the exiting thread.

  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Runs `action` with the GIL held, from any thread. Once Python has begun to exit, other threads
// than the exiting one can no longer get it: then returns false at once, and what `action` would
// have freed is left to the end of the process.
bool WithGil(absl::FunctionRef<void()> action);

// An owner that drops `resource` with the GIL held, whichever thread is the last to let go of it.
template <typename T>
std::shared_ptr<T> DroppedUnderGil(T resource) {
  return std::shared_ptr<T>(new T(std::move(resource)),
                            [](T* owned) { WithGil([owned] { delete owned; }); });
}

// Sees to it that WithGil knows when Python exits, and CheckSignals which thread is the main one.
// For the module's initialisation.
void InstallExitHook();

// An InterruptScope::Check: on Python's main thread, runs the handlers of signals that have
// arrived. If one of them raises, such as Ctrl-C's, leaves the exception in place and returns an
// InterruptedError. Any thread; the GIL need not be held.
absl::Status CheckSignals();

// The same handle, for Python to hold. Its end may wait for threads that release Python's arrays,
// so it comes without the GIL; in a fork()ed child, which lacks those threads, it never comes.
template <typename T>
std::shared_ptr<T> DroppedWithoutGil(std::shared_ptr<T> handle) {
  T* const raw = handle.get();
  return std::shared_ptr<T>(raw, [handle = std::move(handle), pid = getpid()](T*) mutable {
    if (getpid() != pid) {
      new std::shared_ptr<T>(std::move(handle));
    } else if (HoldsGil()) {
      GilReleased released;
      handle.reset();
    } else {
      handle.reset();
    }
  });
}

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_GIL_H_
