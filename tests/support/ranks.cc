#include "tests/support/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace syncline {
namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

std::vector<absl::Status> RunRanks(int size, const std::function<absl::Status(int rank)>& body,
                                   absl::Duration limit) {
  std::vector<absl::Status> statuses(size);
  absl::Mutex mutex;
  std::vector<bool> returned(size);
  int running = size;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = body(rank);
      absl::MutexLock lock(&mutex);
      returned[rank] = true;
      --running;
    });
  }
  {
    absl::MutexLock lock(&mutex);
    auto finished = [&] { return running == 0; };
    if (!mutex.AwaitWithTimeout(absl::Condition(&finished), limit)) {
      for (int rank = 0; rank < size; ++rank) {
        if (!returned[rank]) {
          std::fprintf(stderr, "rank %d of %d has not returned after %s\n", rank, size,
                       absl::FormatDuration(limit).c_str());
        }
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void Countdown::Step() {
  absl::MutexLock lock(&mutex_);
  --steps_;
}

void Countdown::Wait() {
  absl::MutexLock lock(&mutex_);
  auto open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return steps_ <= 0; };
  if (mutex_.AwaitWithTimeout(absl::Condition(&open), absl::Minutes(1))) return;
  std::fprintf(stderr, "%d steps of a countdown were not made\n", steps_);
  std::abort();
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) Die("socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) Die("bind");
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) Die("getsockname");
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace syncline
