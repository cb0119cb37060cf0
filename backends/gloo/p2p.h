// The algorithms of gloo's send and recv.
#ifndef SYNCLINE_BACKENDS_GLOO_P2P_H_
#define SYNCLINE_BACKENDS_GLOO_P2P_H_

#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/tensor.h"

namespace syncline::gloo_backend {

// Sends and receives of one rank. Gloo matches messages and keeps those that come unexpected; this
// only gives receives from any rank their turns. A header that describes the call goes before the
// elements of each message. The elements leave only once the receiver has found that they fit: a
// message that does not fit is an error of the two calls, not of the group's connections.
//
// Thread-safe as far as include/syncline/backend.h allows calls of Send and Recv beside each other.
// Throws what Gloo throws.
class P2p {
 public:
  void Send(gloo::Context& gloo, const Tensor& tensor, const CallContext& context);

  // Returns the rank that sent. A MismatchError if what it sends does not fit; a TimeoutError if a
  // receive from any rank could not begin before the deadline.
  absl::StatusOr<int> Recv(gloo::Context& gloo, const Tensor& tensor, const CallContext& context);

  // Makes receives from any rank throw, now and later, because all other ranks have left.
  void FailAnySourceReceives();

 private:
  // While a receive from any rank waits for a message with its tag, later receives with that tag
  // wait here until it has got one. Otherwise Gloo would prefer the later receive if it names the
  // sender.
  absl::Status AwaitTurn(int tag, const Deadline& deadline);
  int ReceiveFromAny(gloo::transport::UnboundBuffer& buffer, const std::vector<int>& sources,
                     int tag);

  absl::Mutex mutex_;
  // The receives from any rank that wait for a message, by tag.
  std::map<int, gloo::transport::UnboundBuffer*> from_any_ ABSL_GUARDED_BY(mutex_);
  bool all_have_left_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_P2P_H_
