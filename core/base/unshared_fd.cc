#include "core/base/unshared_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace syncline::base {
namespace {

// All that there are. fork() holds the mutex, so the child finds the list whole. A mutex of the C
// library, since only that may be unlocked in the child.
struct Registry {
  std::mutex mutex;
  std::vector<int> fds;

  static Registry& Get() {
    static Registry* const registry = [] {
      auto* created = new Registry;
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] {
                       Get().Replace();
                       Get().mutex.unlock();
                     });
      return created;
    }();
    return *registry;
  }

  void Forget(int fd) {
    std::lock_guard<std::mutex> lock(mutex);
    // The last ones are closed first, as a rule.
    const auto found = std::find(fds.rbegin(), fds.rend(), fd);
    if (found == fds.rend()) return;  // In a child.
    *found = fds.back();
    fds.pop_back();
  }

  // In a child, whose copies of the owners keep the numbers: they must not come to stand for what
  // the child opens.
  void Replace() {
    const int nothing = fds.empty() ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : fds) {
      if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
    }
    if (nothing >= 0) close(nothing);
    fds.clear();
  }
};

}  // namespace

UnsharedFd::UnsharedFd(UniqueFd fd) : fd_(fd.release()) {
  if (fd_ < 0) return;
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.fds.push_back(fd_);
}

UnsharedFd UnsharedFd::Open(const std::string& path, int flags, mode_t mode) {
  UnsharedFd opened;
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  opened.fd_ = open(path.c_str(), flags | O_CLOEXEC, mode);
  if (opened.valid()) registry.fds.push_back(opened.fd_);
  return opened;
}

void UnsharedFd::reset() { Share(); }

UniqueFd UnsharedFd::Share() {
  if (fd_ >= 0) Registry::Get().Forget(fd_);
  return UniqueFd(std::exchange(fd_, -1));
}

}  // namespace syncline::base
