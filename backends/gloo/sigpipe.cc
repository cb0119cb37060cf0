#include "backends/gloo/sigpipe.h"

#include <ctime>

namespace syncline::gloo_backend {
namespace {

sigset_t SigpipeOnly() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

ScopedSigpipeBlock::ScopedSigpipeBlock() {
  const sigset_t sigpipe = SigpipeOnly();
  pthread_sigmask(SIG_BLOCK, &sigpipe, &before_);
}

ScopedSigpipeBlock::~ScopedSigpipeBlock() {
  // The caller had blocked SIGPIPE itself, so a pending signal may be the caller's.
  if (sigismember(&before_, SIGPIPE) == 1) return;
  const sigset_t sigpipe = SigpipeOnly();
  sigset_t pending;
  if (sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1) {
    const timespec now = {};
    sigtimedwait(&sigpipe, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace syncline::gloo_backend
