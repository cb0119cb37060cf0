// For tests of what happens when a process has no file descriptors left.
#ifndef SYNCLINE_CORE_TESTING_NO_DESCRIPTORS_H_
#define SYNCLINE_CORE_TESTING_NO_DESCRIPTORS_H_

#include <sys/resource.h>
#include <unistd.h>

namespace syncline {

// While it exists, this process can open no further descriptor: EMFILE. Those it has stay open.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDIN_FILENO);
    close(next);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_NO_DESCRIPTORS_H_
