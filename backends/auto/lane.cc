#include "backends/auto/lane.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gloo/common/error.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace syncline {
namespace {

using gloo::transport::UnboundBuffer;

class LaneBuffer final : public UnboundBuffer {
 public:
  LaneBuffer(std::unique_ptr<UnboundBuffer> buffer, const std::vector<int>& ranks)
      : UnboundBuffer(buffer->ptr, buffer->size), buffer_(std::move(buffer)), ranks_(ranks) {}

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    const bool completed = buffer_->waitRecv(rank, timeout);
    if (rank != nullptr) *rank = IndexOf(*rank);
    return completed;
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    const bool completed = buffer_->waitSend(rank, timeout);
    if (rank != nullptr) *rank = IndexOf(*rank);
    return completed;
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }

  void send(int dst, uint64_t slot, size_t offset, size_t nbytes) override {
    buffer_->send(ranks_[dst], slot, offset, nbytes);
  }
  void recv(int src, uint64_t slot, size_t offset, size_t nbytes) override {
    buffer_->recv(ranks_[src], slot, offset, nbytes);
  }
  void recv(std::vector<int> sources, uint64_t slot, size_t offset, size_t nbytes) override {
    for (int& source : sources) source = ranks_[source];
    buffer_->recv(std::move(sources), slot, offset, nbytes);
  }

 private:
  int IndexOf(int rank) const {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }

  const std::unique_ptr<UnboundBuffer> buffer_;
  const std::vector<int> ranks_;
};

class LaneTransport final : public gloo::transport::Context {
 public:
  LaneTransport(std::shared_ptr<gloo::Context> gloo, std::vector<int> ranks, int place)
      : Context(place, static_cast<int>(ranks.size())),
        gloo_(std::move(gloo)),
        ranks_(std::move(ranks)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int index) override {
    return gloo_->getPair(ranks_[index]);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int index) override { return getPair(index); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, size_t size) override {
    return std::make_unique<LaneBuffer>(gloo_->createUnboundBuffer(data, size), ranks_);
  }

 private:
  const std::shared_ptr<gloo::Context> gloo_;
  const std::vector<int> ranks_;
};

class LaneContext final : public gloo::Context {
 public:
  explicit LaneContext(std::shared_ptr<LaneTransport> transport)
      : Context(transport->rank, transport->size) {
    transportContext_ = std::move(transport);
  }
};

}  // namespace

std::shared_ptr<gloo::Context> MakeLane(std::shared_ptr<gloo::Context> gloo, std::vector<int> ranks,
                                        int place) {
  return std::make_shared<LaneContext>(
      std::make_shared<LaneTransport>(std::move(gloo), std::move(ranks), place));
}

}  // namespace syncline
