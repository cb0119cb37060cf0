// UniqueFd: owns a file descriptor and closes it when destroyed. Not thread-safe, as a unique_ptr.
#ifndef SYNCLINE_CORE_BASE_UNIQUE_FD_H_
#define SYNCLINE_CORE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace syncline::base {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Gives up ownership: the caller closes the descriptor.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_UNIQUE_FD_H_
