// Strangers at a port: many connections that say nothing, or nothing in time.
#ifndef SYNCLINE_CORE_TESTING_FLOOD_H_
#define SYNCLINE_CORE_TESTING_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace syncline {

// Keeps `count` connections to a port of 127.0.0.1, from a thread of its own, until it is
// destroyed: one that is closed is made again after a moment.
class Flood {
 public:
  // Each connection sends a byte of `slow` each second, from its beginning to its end; nothing if
  // that is empty.
  Flood(int port, int count, absl::string_view slow = "");
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Whether each connection was made once at least, or refused, within `limit`.
  bool AwaitAll(absl::Duration limit) const;

  int64_t made() const { return made_; }  // Connections, ever.

 private:
  struct Stranger {
    base::UniqueFd socket;
    bool is_connected = false;
    size_t sent = 0;
    absl::Time next;  // When it connects again, or sends its next byte.
  };

  void Run();
  void Connect(size_t index);
  void Close(size_t index);

  const int port_;
  const std::string slow_;
  base::UniqueFd epoll_;
  std::vector<Stranger> strangers_;
  std::atomic<bool> stops_{false};
  std::atomic<int64_t> made_{0};
  std::atomic<int> awaited_;
  std::vector<bool> has_tried_;
  std::thread thread_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_FLOOD_H_
