#include "backends/gloo/transport.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/gloo/periodic_wakeup.h"
#include "core/base/stall.h"
#include "gloo/common/error.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

using gloo::transport::UnboundBuffer;

// An error that goes through Gloo's algorithms as an exception.
struct StatusException final : std::exception {
  explicit StatusException(absl::Status status) : status(std::move(status)) {}
  const absl::Status status;
};

[[noreturn]] void ThrowClosed() { throw gloo::IoException("the connections were closed"); }

// Waits inside Gloo by `wait`, which returns false when `wake` ends it early. It throws where it
// cannot return true, because Gloo's algorithms take every wait that returns for a success.
template <typename Wait>
bool AwaitInGloo(BufferSet& set, std::atomic<bool>* aborted, const Deadline& deadline,
                 absl::FunctionRef<void()> wake, const Wait& wait) {
  while (true) {
    {
      const PeriodicWakeup wakeup(wake);
      if (wait(ToGlooTimeout(deadline.Remaining()))) return true;
    }
    // The wait was ended early: by the periodic wakeup, by a user of the buffer, or by BufferSet.
    if (aborted != nullptr && aborted->exchange(false)) ThrowClosed();
    set.Check();
    // No lock is held here, which both of these need: the one asks the store, the other may run
    // handlers of signals.
    base::StallWatch::Look();
    if (!CheckInterrupt().ok()) throw gloo::IoException("interrupted");
  }
}

// A buffer of Gloo's that ignores the timeout of each wait, and keeps to the deadline instead.
class DeadlineBuffer final : public UnboundBuffer {
 public:
  DeadlineBuffer(std::unique_ptr<UnboundBuffer> buffer, BufferSet& set, const Deadline& deadline)
      : UnboundBuffer(buffer->ptr, buffer->size),
        buffer_(std::move(buffer)),
        set_(set),
        deadline_(deadline) {
    set_.Add(buffer_.get());
  }
  ~DeadlineBuffer() override { set_.Remove(buffer_.get()); }

  bool waitRecv(int* rank, std::chrono::milliseconds) override {
    return AwaitInGloo(
        set_, &recv_aborted_, deadline_, [this] { buffer_->abortWaitRecv(); },
        [&](std::chrono::milliseconds timeout) { return buffer_->waitRecv(rank, timeout); });
  }
  bool waitSend(int* rank, std::chrono::milliseconds) override {
    return AwaitInGloo(
        set_, &send_aborted_, deadline_, [this] { buffer_->abortWaitSend(); },
        [&](std::chrono::milliseconds timeout) { return buffer_->waitSend(rank, timeout); });
  }
  // Gloo's algorithms and P2p call these two, to end a wait for good. The periodic wakeup calls
  // those of buffer_, after which AwaitInGloo takes the wait up again.
  void abortWaitRecv() override {
    recv_aborted_ = true;
    buffer_->abortWaitRecv();
  }
  void abortWaitSend() override {
    send_aborted_ = true;
    buffer_->abortWaitSend();
  }

  void send(int dst, uint64_t slot, size_t offset, size_t nbytes) override {
    buffer_->send(dst, slot, offset, nbytes);
  }
  void recv(int src, uint64_t slot, size_t offset, size_t nbytes) override {
    buffer_->recv(src, slot, offset, nbytes);
  }
  void recv(std::vector<int> sources, uint64_t slot, size_t offset, size_t nbytes) override {
    buffer_->recv(std::move(sources), slot, offset, nbytes);
  }

 private:
  const std::unique_ptr<UnboundBuffer> buffer_;
  BufferSet& set_;
  const Deadline deadline_;
  std::atomic<bool> recv_aborted_{false}, send_aborted_{false};
};

[[noreturn]] void ThrowNoPeer() { throw gloo::IoException("the group has no other rank"); }

class SingleRankTransport final : public gloo::transport::Context {
 public:
  SingleRankTransport() : Context(0, 1) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int) override { ThrowNoPeer(); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int) override { ThrowNoPeer(); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void*, size_t) override { ThrowNoPeer(); }
};

// The connections of another transport, with DeadlineBuffers as buffers.
class OperationTransport final : public gloo::transport::Context {
 public:
  OperationTransport(std::shared_ptr<gloo::transport::Context> transport, BufferSet& set,
                     const Deadline& deadline)
      : Context(transport->rank, transport->size),
        transport_(std::move(transport)),
        set_(set),
        deadline_(deadline) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override {
    return transport_->getPair(rank);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    return transport_->createPair(rank);
  }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, size_t size) override {
    return std::make_unique<DeadlineBuffer>(transport_->createUnboundBuffer(data, size), set_,
                                            deadline_);
  }

 private:
  const std::shared_ptr<gloo::transport::Context> transport_;
  BufferSet& set_;
  const Deadline deadline_;
};

class OperationContext final : public gloo::Context {
 public:
  explicit OperationContext(std::shared_ptr<OperationTransport> transport)
      : Context(transport->rank, transport->size) {
    transportContext_ = std::move(transport);
  }
};

// Without the source position, "[/build/gloo/pair.cc:123] ", that Gloo puts in front.
absl::string_view WithoutPosition(absl::string_view message) {
  const size_t end = message.find("] ");
  if (absl::StartsWith(message, "[") && end != absl::string_view::npos &&
      absl::StrContains(message.substr(0, end), ".cc:")) {
    message.remove_prefix(end + 2);
  }
  return absl::StripAsciiWhitespace(message);
}

}  // namespace

absl::Status CatchGloo(absl::FunctionRef<void()> calls) {
  try {
    calls();
    return absl::OkStatus();
  } catch (const StatusException& error) {
    return error.status;
  } catch (const gloo::SizeMismatchException& error) {
    const std::string text =
        absl::StrCat(error.what(), ": all ranks must make the same calls in the same order");
    return WithRanks(MismatchError(text), {error.rank});
  } catch (const std::exception& error) {
    return NetworkError(WithoutPosition(error.what()));
  }
}

void ThrowThroughGloo(const absl::Status& status) { throw StatusException(status); }

std::chrono::milliseconds ToGlooTimeout(absl::Duration duration) {
  const absl::Duration bounded = std::clamp(duration, absl::Milliseconds(1), absl::Hours(24 * 365));
  return absl::ToChronoMilliseconds(absl::Ceil(bounded, absl::Milliseconds(1)));
}

std::shared_ptr<gloo::transport::Context> MakeSingleRankTransport() {
  return std::make_shared<SingleRankTransport>();
}

void BufferSet::Add(UnboundBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) throw StatusException(cause_);
  buffers_.insert(buffer);
}

void BufferSet::Check() {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) throw StatusException(cause_);
}

void BufferSet::Remove(UnboundBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  buffers_.erase(buffer);
}

void BufferSet::Abort(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  cause_.Update(cause);
  for (UnboundBuffer* buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

PersistentBuffer::PersistentBuffer(gloo::transport::Context& transport, BufferSet& set, void* data,
                                   size_t size)
    : buffer_(transport.createUnboundBuffer(data, size)), set_(set) {
  set_.Add(buffer_.get());
}

PersistentBuffer::~PersistentBuffer() { set_.Remove(buffer_.get()); }

void PersistentBuffer::AwaitSent(const Deadline& deadline) {
  set_.Check();
  AwaitInGloo(
      set_, nullptr, deadline, [this] { buffer_->abortWaitSend(); },
      [this](std::chrono::milliseconds timeout) { return buffer_->waitSend(nullptr, timeout); });
}

void PersistentBuffer::AwaitReceived(const Deadline& deadline) {
  set_.Check();
  AwaitInGloo(
      set_, nullptr, deadline, [this] { buffer_->abortWaitRecv(); },
      [this](std::chrono::milliseconds timeout) { return buffer_->waitRecv(nullptr, timeout); });
}

std::shared_ptr<gloo::Context> MakeOperationContext(
    std::shared_ptr<gloo::transport::Context> transport, BufferSet& buffers,
    const Deadline& deadline) {
  return std::make_shared<OperationContext>(
      std::make_shared<OperationTransport>(std::move(transport), buffers, deadline));
}

}  // namespace syncline::gloo_backend
