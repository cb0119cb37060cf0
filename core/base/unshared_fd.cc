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

  // Whether it was there. Under the mutex.
  bool Forget(int fd) {
    // The last ones are closed first, as a rule.
    const auto found = std::find(fds.rbegin(), fds.rend(), fd);
    if (found == fds.rend()) return false;
    *found = fds.back();
    fds.pop_back();
    return true;
  }

  // In a child, whose copies of the owners keep the numbers: they must not come to stand for what
  // the child opens.
  void Replace() {
    if (fds.empty()) return;
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing < 0) {  // All descriptors are taken, perhaps.
      close(fds[0]);
      nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    bool keeps_nothing = false;
    for (const int fd : fds) {
      if (fd == nothing) {
        keeps_nothing = true;
      } else if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) {
        close(fd);
      }
    }
    if (nothing >= 0 && !keeps_nothing) close(nothing);
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

// Closed under the mutex: no fork() comes between, whose child would share it.
void UnsharedFd::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (registry.Forget(fd)) close(fd);
}

UniqueFd UnsharedFd::Share() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return UniqueFd();
  Registry& registry = Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return UniqueFd(registry.Forget(fd) ? fd : -1);
}

}  // namespace syncline::base
