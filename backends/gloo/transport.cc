#include "backends/gloo/transport.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "backends/gloo/nudge.h"
#include "core/base/interrupt.h"
#include "core/base/stall.h"
#include "core/base/status.h"
#include "gloo/common/error.h"

namespace syncline {
namespace {

using gloo::transport::UnboundBuffer;

[[noreturn]] void ThrowClosed() { throw gloo::IoException("the connections were closed"); }

// Waits inside Gloo by `wait`, which returns false when `wake` ends it early. Throws, since Gloo's
// algorithms take every wait that returns for one that succeeded.
template <typename Wait>
bool AwaitInGloo(BufferSet& set, std::atomic<bool>* aborted, const Deadline& deadline,
                 absl::FunctionRef<void()> wake, const Wait& wait) {
  while (true) {
    {
      const Nudge nudge(wake);
      if (wait(ToGlooTimeout(deadline.Remaining()))) return true;
    }
    if (aborted != nullptr && aborted->exchange(false)) ThrowClosed();
    set.Check();
    StallWatch::Look();
    if (!CheckInterrupt().ok()) throw gloo::IoException("interrupted");
  }
}

// Wraps a buffer of Gloo's.
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

[[noreturn]] void ThrowAlone() { throw gloo::IoException("the group has no other rank"); }

class LoneTransport final : public gloo::transport::Context {
 public:
  LoneTransport() : Context(0, 1) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int) override { ThrowAlone(); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int) override { ThrowAlone(); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void*, size_t) override { ThrowAlone(); }
};

// Hands out the connections of another transport, and DeadlineBuffers.
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
  // By std::exception, whose type information is the C++ library's: Gloo's own types may have a
  // second, hidden copy in the library that this code is linked into.
  try {
    calls();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return NetworkError(WithoutPosition(error.what()));
  }
}

std::chrono::milliseconds ToGlooTimeout(absl::Duration duration) {
  const absl::Duration bounded = std::clamp(duration, absl::Milliseconds(1), absl::Hours(24 * 365));
  return absl::ToChronoMilliseconds(absl::Ceil(bounded, absl::Milliseconds(1)));
}

std::shared_ptr<gloo::transport::Context> MakeLoneTransport() {
  return std::make_shared<LoneTransport>();
}

void BufferSet::Add(UnboundBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  if (aborted_) ThrowClosed();
  buffers_.insert(buffer);
}

void BufferSet::Check() {
  absl::MutexLock lock(&mutex_);
  if (aborted_) ThrowClosed();
}

void BufferSet::Remove(UnboundBuffer* buffer) {
  absl::MutexLock lock(&mutex_);
  buffers_.erase(buffer);
}

void BufferSet::Abort() {
  absl::MutexLock lock(&mutex_);
  aborted_ = true;
  for (UnboundBuffer* buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

StandingBuffer::StandingBuffer(gloo::transport::Context& transport, BufferSet& set, void* data,
                               size_t size)
    : buffer_(transport.createUnboundBuffer(data, size)), set_(set) {
  set_.Add(buffer_.get());
}

StandingBuffer::~StandingBuffer() { set_.Remove(buffer_.get()); }

void StandingBuffer::AwaitSent(const Deadline& deadline) {
  set_.Check();
  AwaitInGloo(
      set_, nullptr, deadline, [this] { buffer_->abortWaitSend(); },
      [this](std::chrono::milliseconds timeout) { return buffer_->waitSend(nullptr, timeout); });
}

void StandingBuffer::AwaitReceived(const Deadline& deadline) {
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

}  // namespace syncline
