// Keeps MPI libraries from taking the process's handlers of faults away.
#ifndef SYNCLINE_BACKENDS_MPI_SIGNAL_HANDLERS_H_
#define SYNCLINE_BACKENDS_MPI_SIGNAL_HANDLERS_H_

#include <csignal>

namespace syncline::mpi {

// UCX, by which MPICH and Open MPI may reach the network, handles SIGSEGV and its like to print a
// stack. Where the process handles them already, as a JVM does, which needs SIGSEGV to work at all,
// the handlers are as they were when an object of this class was made once it is destroyed. Make
// one around whatever loads or initialises MPI.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers();
  ~KeepSignalHandlers();

  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  static constexpr int kCount = sizeof(kSignals) / sizeof(kSignals[0]);

  struct sigaction actions_[kCount];
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_SIGNAL_HANDLERS_H_
