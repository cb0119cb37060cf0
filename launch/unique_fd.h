// A file descriptor that is closed with its owner.
#ifndef SYNCLINE_LAUNCH_UNIQUE_FD_H_
#define SYNCLINE_LAUNCH_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace syncline {

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

 private:
  int fd_ = -1;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_UNIQUE_FD_H_
