// Gloo's messages for the algorithms of backends/common/message_collectives.h.
#ifndef SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
#define SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "backends/common/message_transport.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace syncline::gloo_backend {

// Messages on one slot. Borrows the context. A message that is not as long as the receive posted
// for it ends the connection. Wait returns OK or throws what Gloo throws.
class Transfers final : public backends::Messages {
 public:
  Transfers(gloo::Context& context, uint64_t slot) : context_(context), slot_(slot) {}

  void Send(int to, const void* data, size_t nbytes) override;
  void Receive(int from, void* data, size_t nbytes) override;
  absl::Status Wait() override;

 private:
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;

  gloo::Context& context_;
  const uint64_t slot_;
  Buffers sends_, receives_;
};

// The messages of one operation, on one slot. Shares the context.
class GlooTransport final : public backends::MessageTransport {
 public:
  GlooTransport(std::shared_ptr<gloo::Context> context, uint64_t slot)
      : backends::MessageTransport(context->rank, context->size),
        context_(std::move(context)),
        slot_(slot) {}

  std::unique_ptr<backends::Messages> NewMessages() override {
    return std::make_unique<Transfers>(*context_, slot_);
  }

 private:
  const std::shared_ptr<gloo::Context> context_;
  const uint64_t slot_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
