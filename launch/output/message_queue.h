// Passes lines for the console from other threads to the launcher's poll loop.
#ifndef SYNCLINE_LAUNCH_OUTPUT_MESSAGE_QUEUE_H_
#define SYNCLINE_LAUNCH_OUTPUT_MESSAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// A bounded queue of log lines (of the store's threads, for example) and of WriterThreads' errors.
// Put never blocks, so it may be called with locks held. Beyond kMaxMessages lines are dropped, and
// the next Take adds a line with their number. Owns the eventfd(2). Thread-safe.
class MessageQueue {
 public:
  static constexpr size_t kMaxMessages = 1000;

  struct Message {
    std::string text;
    std::string topic;  // Not empty: only the first message of a topic is to be shown.
  };

  MessageQueue();

  int fd() const { return fd_.get(); }  // Readable when there is something to take.
  void Put(Message message);
  void Wake();  // Makes the descriptor readable, without a message.
  std::vector<Message> Take();

 private:
  const base::UniqueFd fd_;
  absl::Mutex mutex_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_MESSAGE_QUEUE_H_
