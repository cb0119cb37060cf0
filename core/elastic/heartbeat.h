// A worker's sign of life, for the launcher that watches over it.
#ifndef SYNCLINE_CORE_ELASTIC_HEARTBEAT_H_
#define SYNCLINE_CORE_ELASTIC_HEARTBEAT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace syncline {

// Says by the time of a file's last modification that this process makes progress. Thread-safe.
class Heartbeat {
 public:
  // Of the file that SYNCLINE_HEARTBEAT_FILE names; does nothing if it is unset.
  static std::shared_ptr<Heartbeat> Create();

  // Of `file`; does nothing if that is empty.
  explicit Heartbeat(std::string file);

  // Touches the file, which is made if it is absent, at most ten times a second: cheap enough for
  // every step of a training. A file that cannot be touched is told in the log, once.
  void Beat();

 private:
  void Touch();

  const std::string file_;
  std::atomic<int64_t> next_{0};  // By the monotonic clock, in nanoseconds.
  std::atomic<bool> has_failed_{false};
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_ELASTIC_HEARTBEAT_H_
