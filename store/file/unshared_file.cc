#include "store/file/unshared_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

namespace syncline::file_store {
namespace {

// All that are open. fork() holds the mutex, so the child finds the list whole. A mutex of the C
// library, since only that may be unlocked in the child.
struct OpenFiles {
  std::mutex mutex;
  std::vector<int> fds;
};

OpenFiles& Files() {
  static OpenFiles* const files = [] {
    auto* created = new OpenFiles;
    pthread_atfork([] { Files().mutex.lock(); }, [] { Files().mutex.unlock(); },
                   [] {
                     for (const int fd : Files().fds) close(fd);
                     Files().fds.clear();
                     Files().mutex.unlock();
                   });
    return created;
  }();
  return *files;
}

}  // namespace

int OpenUnshared(const std::string& path, int flags, mode_t mode) {
  OpenFiles& files = Files();
  std::lock_guard<std::mutex> lock(files.mutex);
  const int fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd >= 0) files.fds.push_back(fd);
  return fd;
}

void CloseUnshared(int fd) {
  OpenFiles& files = Files();
  std::lock_guard<std::mutex> lock(files.mutex);
  files.fds.erase(std::remove(files.fds.begin(), files.fds.end(), fd), files.fds.end());
  close(fd);
}

}  // namespace syncline::file_store
