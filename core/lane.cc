#include "core/lane.h"

#include <utility>

#include "absl/synchronization/notification.h"

namespace syncline {

Lane::~Lane() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status Lane::Run(absl::FunctionRef<absl::Status(uint64_t)> operation) {
  absl::Status result;
  absl::Notification done;
  mutex_.Lock();
  const uint64_t number = issued_++;
  if (busy_ || !queue_.empty()) {
    Enqueue([&] {
      result = operation(number);
      done.Notify();
    });
    mutex_.Unlock();
    done.WaitForNotification();
    return result;
  }
  busy_ = true;
  mutex_.Unlock();
  result = operation(number);
  absl::MutexLock lock(&mutex_);
  busy_ = false;
  return result;
}

void Lane::Post(absl::FunctionRef<std::function<void()>(uint64_t)> issue) {
  absl::MutexLock lock(&mutex_);
  Enqueue(issue(issued_++));
}

void Lane::Enqueue(std::function<void()> operation) {
  queue_.push_back(std::move(operation));
  if (!thread_.joinable()) thread_ = std::thread(&Lane::Loop, this);
}

void Lane::Loop() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &Lane::HasTurn));
    if (queue_.empty()) return;
    std::function<void()> operation = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    mutex_.Unlock();
    operation();
    operation = nullptr;  // What it holds is released without the lock.
    mutex_.Lock();
    busy_ = false;
  }
}

}  // namespace syncline
