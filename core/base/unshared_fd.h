// UnsharedFd: a descriptor that a fork()ed child does not share.
#ifndef SYNCLINE_CORE_BASE_UNSHARED_FD_H_
#define SYNCLINE_CORE_BASE_UNSHARED_FD_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "core/base/unique_fd.h"

namespace syncline::base {

// As UniqueFd; but in a fork()ed child the number stands for /dev/null. So what the descriptor
// opens, a connection or a file with its locks, ends with this process however that ends, and
// whatever its children do. Only a bare clone() and dup() escape this. The child's copies of such
// objects close nothing: the number stays taken there. Not thread-safe.
class UnsharedFd {
 public:
  UnsharedFd() = default;
  // A fork() before this shares it.
  explicit UnsharedFd(UniqueFd fd);
  UnsharedFd(UnsharedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UnsharedFd& operator=(UnsharedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UnsharedFd() { reset(); }

  // As open(), with O_CLOEXEC. No fork() comes between the opening and the rest; a fork() waits for
  // it. Invalid, with errno, if it cannot be opened.
  static UnsharedFd Open(const std::string& path, int flags, mode_t mode);

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();
  // From now on children share it. In a child it is invalid.
  UniqueFd Share();

 private:
  int fd_ = -1;
};

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_UNSHARED_FD_H_
