// Calls what glibc_shims.cc stands in for, as C++ programs do, and says what it got.
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long the wait took: "too short", "too long", or "as said".
template <typename Wait>
const char* Measured(milliseconds time, const Wait& wait) {
  const steady_clock::time_point start = steady_clock::now();
  wait();
  const auto took = steady_clock::now() - start;
  if (took < time) return "too short";
  return took > time + std::chrono::seconds(10) ? "too long" : "as said";
}

void Waits() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock<std::mutex> lock(mutex);
  std::printf("condition %s\n", Measured(milliseconds(50), [&] {
                condition.wait_for(lock, milliseconds(50), [] { return false; });
              }));
  pthread_mutex_t timed = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&timed);
  std::printf("mutex %s\n", Measured(milliseconds(50), [&] {
                timespec end;
                clock_gettime(CLOCK_MONOTONIC, &end);
                end.tv_nsec += 50000000;
                end.tv_sec += end.tv_nsec / 1000000000;
                end.tv_nsec %= 1000000000;
                if (pthread_mutex_clocklock(&timed, CLOCK_MONOTONIC, &end) != ETIMEDOUT)
                  std::abort();
              }));
  bool is_set = false;
  std::thread setter([&] {
    std::lock_guard<std::mutex> guard(mutex);
    is_set = true;
    condition.notify_one();
  });
  condition.wait_for(lock, std::chrono::minutes(1), [&] { return is_set; });
  std::printf("notified %d\n", is_set);
  lock.unlock();
  setter.join();
}

// Counts references from two threads at once.
void Shares() {
  const auto shared = std::make_shared<int>(1);
  const auto copy = [&] {
    for (int i = 0; i < 1000000; ++i) const std::shared_ptr<int> another = shared;
  };
  std::thread other(copy);
  copy();
  other.join();
  std::printf("references %ld\n", shared.use_count());
}

}  // namespace

int main(int argc, char**) {
  const double x = argc + 1.5;  // 2.5, which the compiler does not know.
  std::printf("exp %.17g %.17g log %.17g %.17g pow %.17g\n", std::exp(x), std::exp2(x), std::log(x),
              std::log2(x), std::pow(x, 1.5));
  std::printf("edges %g %g %g %g\n", std::log(x - 2.5), std::log(-x), std::pow(x - 2.5, -1),
              std::exp(x * 1000));
  Waits();
  Shares();
  std::random_device random;
  std::printf("random %d\n", random() != random() || random() != random());
  for (int signal = 0; signal <= 32; ++signal) {
    const char* const name = sigabbrev_np(signal);
    std::printf("%s ", name == nullptr ? "-" : name);
  }
  std::printf("\n");
}
