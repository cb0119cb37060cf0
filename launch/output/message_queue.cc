#include "launch/output/message_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace syncline::launch {

MessageQueue::MessageQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void MessageQueue::Put(Message message) {
  absl::MutexLock lock(&mutex_);
  if (messages_.size() < kMaxMessages) {
    messages_.push_back(std::move(message));
  } else {
    ++dropped_;
  }
  Wake();
}

void MessageQueue::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
}

std::vector<MessageQueue::Message> MessageQueue::Take() {
  absl::MutexLock lock(&mutex_);
  uint64_t count;
  [[maybe_unused]] const ssize_t taken = read(fd_.get(), &count, sizeof(count));
  std::vector<Message> messages = std::exchange(messages_, {});
  if (const int64_t dropped = std::exchange(dropped_, 0); dropped > 0) {
    messages.push_back({absl::StrCat("... ", dropped, " lines of the log dropped"), ""});
  }
  return messages;
}

}  // namespace syncline::launch
