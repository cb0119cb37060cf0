// News from other threads, as a descriptor to poll.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_NEWS_QUEUE_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_NEWS_QUEUE_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/unique_fd.h"
#include "launch/rendezvous/participant.h"

namespace syncline {

// Thread-safe.
class NewsQueue {
 public:
  NewsQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return fd_.get(); }

  void Put(ParticipantNews news) {
    absl::MutexLock lock(&mutex_);
    news_.push_back(std::move(news));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
  }

  std::vector<ParticipantNews> Take() {
    absl::MutexLock lock(&mutex_);
    uint64_t count;
    [[maybe_unused]] const ssize_t taken = read(fd_.get(), &count, sizeof(count));
    return std::exchange(news_, {});
  }

 private:
  const UniqueFd fd_;
  absl::Mutex mutex_;
  std::vector<ParticipantNews> news_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_NEWS_QUEUE_H_
