#include "backends/mpi/signal_handlers.h"

#include <cstdlib>

namespace syncline::mpi {
namespace {

bool IsHandled(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

}  // namespace

KeepSignalHandlers::KeepSignalHandlers() {
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], nullptr, &actions_[i]);
  // Until the handlers are restored, a fault of another thread would end a JVM. UCX reads this when
  // it is loaded; what the user has set stays.
  if (IsHandled(actions_[0])) setenv("UCX_ERROR_SIGNALS", "", /*overwrite=*/0);
}

KeepSignalHandlers::~KeepSignalHandlers() {
  for (int i = 0; i < kCount; ++i) {
    if (IsHandled(actions_[i])) sigaction(kSignals[i], &actions_[i], nullptr);
  }
}

}  // namespace syncline::mpi
