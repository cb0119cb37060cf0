// Heartbeat: a worker's sign of progress for its launcher, by a file's time of modification. The
// launcher restarts workers that show none (launch/). Ranks do not watch each other by it: whether
// a rank is dead is asked of the kernel.
#ifndef SYNCLINE_LAUNCHER_HEARTBEAT_H_
#define SYNCLINE_LAUNCHER_HEARTBEAT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace syncline {

// Thread-safe. It holds no descriptor and no thread. It never fails: a file that cannot be touched
// is logged, once.
//
//   std::shared_ptr<Heartbeat> heartbeat = Heartbeat::Create();
//   for (each step) {
//     Train();
//     heartbeat->Beat();
//   }
class Heartbeat {
 public:
  // For the file that SYNCLINE_HEARTBEAT_FILE names; it does nothing if that is unset.
  static std::shared_ptr<Heartbeat> Create();

  // For `file`; it does nothing if that is empty.
  explicit Heartbeat(std::string file);

  // Touches the file, at most ten times a second, and makes it if it is absent. Cheap enough for
  // every step of a training.
  void Beat();

 private:
  void Touch();

  const std::string file_;
  std::atomic<int64_t> next_{0};  // When to touch again: monotonic clock, nanoseconds.
  std::atomic<bool> has_failed_{false};
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCHER_HEARTBEAT_H_
