// Several messages under way at once.
#ifndef SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
#define SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace syncline {

// Messages between two ranks on one slot arrive in the order in which they were sent, in the
// receives in the order in which those were posted. Memory must stay until Wait has returned.
// Messages without bytes are left out, on both sides. Throws what Gloo throws.
class Transfers {
 public:
  Transfers(gloo::Context& context, uint64_t slot) : context_(context), slot_(slot) {}

  void Send(int to, const void* data, size_t nbytes);
  void Receive(int from, void* data, size_t nbytes);

  // Until all have gone and come.
  void Wait();

 private:
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;

  gloo::Context& context_;
  const uint64_t slot_;
  Buffers leaving_, arriving_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_TRANSFERS_H_
