// A set of messages that are under way at once.
#ifndef SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
#define SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace syncline::gloo_backend {

// Sends and receives messages on one slot. Between two ranks they arrive in the order in which they
// were sent, in the receives in the order in which those were posted. Messages without bytes are
// left out, on both sides.
//
// Not thread-safe. Borrows the context, and the memory of each message until Wait has returned.
// Throws what Gloo throws.
class Transfers {
 public:
  Transfers(gloo::Context& context, uint64_t slot) : context_(context), slot_(slot) {}

  void Send(int to, const void* data, size_t nbytes);
  void Receive(int from, void* data, size_t nbytes);

  // Waits until all messages so far have been sent and received.
  void Wait();

 private:
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;

  gloo::Context& context_;
  const uint64_t slot_;
  Buffers sends_, receives_;
};

// All ranks of a group of `size` except `rank`, ascending.
std::vector<int> OtherRanks(int rank, int size);

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
