// Keeps a write to a connection that the peer has closed from killing the process.
#ifndef SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_
#define SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_

#include <csignal>

namespace syncline {

// While it lives, SIGPIPE is blocked on this thread, and on threads that it starts; a signal that
// arose meanwhile is discarded at the end. Gloo writes without MSG_NOSIGNAL, and a library must not
// change how the whole process treats a signal.
class ScopedSigpipeBlock {
 public:
  ScopedSigpipeBlock();
  ~ScopedSigpipeBlock();

  ScopedSigpipeBlock(const ScopedSigpipeBlock&) = delete;
  ScopedSigpipeBlock& operator=(const ScopedSigpipeBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_SIGPIPE_H_
