// How gloo's ranks compare their calls before they move data.
#ifndef SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_
#define SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "backends/common/call.h"
#include "backends/common/call_agreement.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/transport.h"
#include "core/base/deadline.h"
#include "gloo/context.h"

namespace syncline {

// All ranks, once they know that they do not agree, tell each other their calls in full; so all
// come to the same verdict. Throws what Gloo throws.
absl::Status CallTheRoll(gloo::Context& gloo, const Call& call);

// Receives for the next comparison are always posted, so that a ballot needs one way only, and
// none but the first of a pair waits for Gloo's consent.
class CallCheck {
 public:
  // Must live until `mesh` has left.
  CallCheck(Mesh& mesh, int rank, int size);

  // Before the first Agree, once.
  void Begin();

  // Meets all other ranks in their calls. OK if these go together; else the same MismatchError on
  // all ranks, which quotes two calls. Throws what Gloo throws.
  absl::Status Agree(gloo::Context& gloo, const Call& call, const Deadline& deadline);

 private:
  struct Round {
    Ballot sent = {}, received = {};
    StandingBuffer* out = nullptr;
    StandingBuffer* in = nullptr;
    absl::Status posted;  // Whether the next receive could be: a peer that has voted may have gone.
  };

  void Post(int k);  // The receive of round k.
  absl::Status Vote(CallAgreement& agreement, const Deadline& deadline);

  const int rank_;
  const int size_;
  std::vector<std::unique_ptr<Round>> rounds_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_
