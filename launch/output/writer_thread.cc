#include "launch/output/writer_thread.h"

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/synchronization/mutex.h"
#include "core/base/thread.h"
#include "launch/clock.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr size_t kChunk = 64 << 10;
constexpr size_t kReserve = 1 << 20;
constexpr size_t kMaxSpares = 4;
constexpr absl::Duration kMoment = absl::Milliseconds(100);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);  // Between calls of `cancelled`.

}  // namespace

struct WriterThread::Queue {
  struct Chunk {
    std::shared_ptr<Output> output;
    std::string bytes;  // Not empty.
  };

  explicit Queue(size_t max_pending) : max_pending(max_pending) {}

  // The thread's loop.
  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return closed || !operations.empty() || !chunks.empty();
  }
  // How long the present call has been blocking, at most since `begin`.
  absl::Duration BlockedFor(absl::Time begin) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return busy ? clock.Now() - std::max(busy_since, begin) : absl::ZeroDuration();
  }

  const size_t max_pending;
  const MonotonicClock clock;
  absl::Mutex mutex;
  std::deque<std::function<void()>> operations ABSL_GUARDED_BY(mutex);
  std::deque<Chunk> chunks ABSL_GUARDED_BY(mutex);  // While busy, the thread uses the first.
  // Buffers of written chunks, empty. A new one for each chunk would cost twice the time of a copy.
  std::vector<std::string> spares ABSL_GUARDED_BY(mutex);
  size_t written ABSL_GUARDED_BY(mutex) = 0;  // Of the first chunk.
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
  bool full ABSL_GUARDED_BY(mutex) = false;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  bool busy ABSL_GUARDED_BY(mutex) = false;  // In a call that may block.
  absl::Time busy_since ABSL_GUARDED_BY(mutex);
};

void WriterThread::Queue::Work() {
  for (;;) {
    std::function<void()> operation;
    Chunk done;
    std::shared_ptr<Output> output;
    absl::string_view rest;
    {
      absl::MutexLock lock(&mutex);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return HasWork(); };
      mutex.Await(absl::Condition(&has_work));
      if (closed) {
        operations.clear();  // They own this queue.
        return;
      }
      busy = true;
      busy_since = clock.Now();
      if (!operations.empty()) {
        operation = std::move(operations.front());
        operations.pop_front();
      } else {
        // Nobody else touches the first chunk while this thread is busy.
        output = chunks.front().output;
        rest = absl::string_view(chunks.front().bytes).substr(written);
      }
    }
    if (operation) {
      operation();
    } else {
      const size_t size = output->Write(rest);
      absl::MutexLock lock(&mutex);
      written += size;
      pending -= size;
      if (size == rest.size()) {
        done = std::move(chunks.front());
        chunks.pop_front();
        written = 0;
        if (spares.size() < kMaxSpares && done.bytes.capacity() <= 2 * kChunk) {
          done.bytes.clear();
          spares.push_back(std::move(done.bytes));
        }
      }
      if (pending <= max_pending / 2) full = false;
    }
    // On this thread, because the destructor of an output may close a file, which may block.
    operation = nullptr;
    done.output = nullptr;
    output = nullptr;
    absl::MutexLock lock(&mutex);
    busy = false;
  }
}

WriterThread::WriterThread(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

absl::StatusOr<std::unique_ptr<WriterThread>> WriterThread::Start(size_t max_pending) {
  auto queue = std::make_shared<Queue>(max_pending);
  SYNCLINE_ASSIGN_OR_RETURN(std::thread thread,
                            base::StartThread("the launcher's output", [queue] { queue->Work(); }));
  thread.detach();
  return absl::WrapUnique(new WriterThread(std::move(queue)));
}

WriterThread::~WriterThread() {
  absl::MutexLock lock(&queue_->mutex);
  queue_->closed = true;
}

bool WriterThread::Append(const std::shared_ptr<Output>& output, absl::string_view bytes) {
  if (bytes.empty()) return true;
  Queue& queue = *queue_;
  absl::MutexLock lock(&queue.mutex);
  if (queue.pending + bytes.size() > queue.max_pending + kReserve) return false;
  const bool in_hands = queue.chunks.size() == 1 && queue.busy;
  if (queue.chunks.empty() || in_hands || queue.chunks.back().output != output ||
      queue.chunks.back().bytes.size() + bytes.size() > kChunk) {
    queue.chunks.push_back({output, ""});
    if (!queue.spares.empty()) {
      queue.chunks.back().bytes = std::move(queue.spares.back());
      queue.spares.pop_back();
    }
  }
  queue.chunks.back().bytes.append(bytes.data(), bytes.size());
  queue.pending += bytes.size();
  if (queue.pending > queue.max_pending) queue.full = true;
  return true;
}

bool WriterThread::full() const {
  absl::MutexLock lock(&queue_->mutex);
  return queue_->full;
}

size_t WriterThread::pending_size() const {
  absl::MutexLock lock(&queue_->mutex);
  return queue_->pending;
}

bool WriterThread::stalled() const {
  absl::MutexLock lock(&queue_->mutex);
  return queue_->BlockedFor(absl::InfinitePast()) > kMoment;
}

bool WriterThread::Run(std::function<void()> operation, absl::Duration timeout) {
  // Outlives this call where the operation does.
  const auto done = std::make_shared<bool>(false);
  Queue& queue = *queue_;
  absl::MutexLock lock(&queue.mutex);
  queue.operations.push_back([queue = queue_, done, operation = std::move(operation)] {
    operation();
    absl::MutexLock lock(&queue->mutex);
    *done = true;
  });
  while (!*done) {
    const absl::Duration left = timeout - queue.BlockedFor(absl::InfinitePast());
    if (left <= absl::ZeroDuration()) return false;
    queue.mutex.AwaitWithTimeout(absl::Condition(done.get()), left);
  }
  return true;
}

bool WriterThread::Flush(absl::Duration timeout, absl::Time deadline,
                         const std::function<bool()>& cancelled) {
  Queue& queue = *queue_;
  const absl::Time begin = queue.clock.Now();
  const auto is_idle = [&queue]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue.mutex) {
    return queue.pending == 0 && queue.operations.empty() && !queue.busy;
  };
  for (;;) {
    {
      absl::MutexLock lock(&queue.mutex);
      if (queue.mutex.AwaitWithTimeout(absl::Condition(&is_idle), kBetweenLooks)) return true;
      if (queue.BlockedFor(begin) >= timeout || queue.clock.Now() >= deadline) return false;
    }
    if (cancelled()) return false;
  }
}

}  // namespace syncline::launch
