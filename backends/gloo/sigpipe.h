// Keeps a write to a connection that the peer has closed from killing the process.
#ifndef SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_
#define SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_

#include <csignal>

namespace syncline::gloo_backend {

// While an object lives, SIGPIPE is blocked on this thread and on the threads that this thread
// starts. A SIGPIPE that arrived meanwhile is discarded at the end. Gloo writes without
// MSG_NOSIGNAL, and a library must not change how the whole process treats a signal. Objects nest;
// each must be destroyed on the thread that made it.
class ScopedSigpipeBlock {
 public:
  ScopedSigpipeBlock();
  ~ScopedSigpipeBlock();

  ScopedSigpipeBlock(const ScopedSigpipeBlock&) = delete;
  ScopedSigpipeBlock& operator=(const ScopedSigpipeBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_
