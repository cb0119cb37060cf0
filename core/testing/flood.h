// Strangers at a port: many connections that say nothing, or nothing in time, or that say what a
// peer would and stop half way.
#ifndef SYNCLINE_CORE_TESTING_FLOOD_H_
#define SYNCLINE_CORE_TESTING_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
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
  // What one connection says. Used on the thread of the Flood.
  class Talk {
   public:
    virtual ~Talk() = default;
    virtual std::string Begin() = 0;  // At once.
    // What it says once `received`, which is all that has come, is so long; mostly nothing.
    virtual std::string Answer(absl::string_view received) = 0;
  };
  using NewTalk = std::function<std::unique_ptr<Talk>()>;

  // Each connection sends a byte of `slow` each second, from its beginning to its end; nothing if
  // that is empty.
  Flood(int port, int count, absl::string_view slow = "");
  // Each connection says what a new Talk does.
  Flood(int port, int count, NewTalk new_talk);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Whether each connection was made once at least, or refused, within `limit`.
  bool AwaitAll(absl::Duration limit) const;

  int64_t made() const { return made_; }          // Connections, ever.
  int64_t answered() const { return answered_; }  // Those that have said all that they would.

 private:
  struct Stranger {
    base::UniqueFd socket;
    bool is_connected = false;
    size_t sent = 0;
    absl::Time next;  // When it connects again, or sends its next byte.
    std::unique_ptr<Talk> talk = nullptr;
    std::string received = {};
  };

  Flood(int port, int count, absl::string_view slow, NewTalk new_talk);

  void Run();
  // Reads what has come to it, and answers. False if it has ended.
  bool Converse(Stranger& stranger);
  void Connect(size_t index);
  void Close(size_t index);

  const int port_;
  const std::string slow_;
  const NewTalk new_talk_;
  base::UniqueFd epoll_;
  std::vector<Stranger> strangers_;
  std::atomic<bool> stops_{false};
  std::atomic<int64_t> made_{0}, answered_{0};
  std::atomic<int> awaited_;
  std::vector<bool> has_tried_;
  std::thread thread_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_FLOOD_H_
