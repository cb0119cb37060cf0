// Calls of the C library that fail on purpose, as they do when a resource is used up.
#ifndef SYNCLINE_CORE_TESTING_FAULTS_H_
#define SYNCLINE_CORE_TESTING_FAULTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace syncline {

// A program that links this, or that is started with it as LD_PRELOAD, calls these through it.
// Each fails as it does by nature:
//   pthread_create, clone (and fork): EAGAIN; socket, accept (and accept4), memfd_create,
//   pidfd_open (by syscall(2)): EMFILE; posix_fallocate: ENOSPC; write (and pwrite) to a file:
//   ENOSPC, to a terminal: EIO, to a socket: ENOBUFS.
// A write to anything else, such as a pipe or an eventfd, has no such failure and is not counted.
const std::vector<std::string>& FaultyCalls();

// From now on, of the calls of `call` by all threads, counted from 1, those with the numbers
// `first` to `first + count - 1` fail; with count 0 none does.
void FailCalls(const std::string& call, int64_t first, int64_t count = 1);

// Ends that. Returns how many calls have failed.
int64_t StopFailing();

// Makes calls fail for as long as it lives.
class ScopedFault {
 public:
  explicit ScopedFault(const std::string& call, int64_t first = 1,
                       int64_t count = int64_t{1} << 60) {
    FailCalls(call, first, count);
  }
  ~ScopedFault() { StopFailing(); }

  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;
};

// From now on, the first call that fails and a signal that ends this process, such as that of
// abort(), add to the file `path` a line that says so, with the functions that led there.
void ReportFaults(const std::string& path);

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_FAULTS_H_
