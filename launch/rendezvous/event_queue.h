// Passes rendezvous events from other threads to the launcher's poll loop.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_EVENT_QUEUE_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_EVENT_QUEUE_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/unique_fd.h"
#include "launch/rendezvous/participant.h"

namespace syncline::launch {

// An unbounded queue with an eventfd(2): the descriptor is readable while events are queued. The
// queue owns the descriptor. Neither call blocks. Thread-safe.
class EventQueue {
 public:
  EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return fd_.get(); }

  void Put(RendezvousEvent event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    // The write cannot fail for want of room: 2^64 - 2 events do not fit into memory.
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
  }

  // All queued events, in the order of Put.
  std::vector<RendezvousEvent> Take() {
    absl::MutexLock lock(&mutex_);
    // Reading resets the eventfd under the same lock as the queue, so that the two never disagree.
    uint64_t count;
    [[maybe_unused]] const ssize_t taken = read(fd_.get(), &count, sizeof(count));
    return std::exchange(events_, {});
  }

 private:
  const base::UniqueFd fd_;
  absl::Mutex mutex_;  // Also orders reads and writes of fd_ with changes of the queue.
  std::vector<RendezvousEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_EVENT_QUEUE_H_
