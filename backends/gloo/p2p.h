// gloo's send and recv.
#ifndef SYNCLINE_BACKENDS_GLOO_P2P_H_
#define SYNCLINE_BACKENDS_GLOO_P2P_H_

#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "core/base/deadline.h"
#include "core/tensor/tensor.h"
#include "gloo/context.h"
#include "gloo/transport/unbound_buffer.h"

namespace syncline {

// A header that describes the call goes before the elements of each message; these leave only once
// the receiver has found that they fit. So none are on their way that would end its process.
//
// Thread-safe, as core/group/backend.h says of Send and Recv. Throws what Gloo throws.
class P2p {
 public:
  void Send(gloo::Context& gloo, const Tensor& tensor, const Call& call);

  // Returns the rank that sent; a MismatchError if what it sends does not fit.
  absl::StatusOr<int> Recv(gloo::Context& gloo, const Tensor& tensor, const Call& call,
                           const Deadline& deadline);

  // When all others have left: receives from any rank fail, which Gloo does not see to.
  void EndFromAny();

 private:
  // While a receive from any rank waits for a message with its tag, later ones with that tag wait
  // for it to get one: Gloo would give their sender's message to them.
  absl::Status AwaitTurn(int tag, const Deadline& deadline);
  int ReceiveFromAny(gloo::transport::UnboundBuffer& buffer, const std::vector<int>& sources,
                     int tag);

  absl::Mutex mutex_;
  // Those that wait for any rank, by tag.
  std::map<int, gloo::transport::UnboundBuffer*> from_any_ ABSL_GUARDED_BY(mutex_);
  bool deserted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_P2P_H_
