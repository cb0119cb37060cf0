// Compares the calls of all ranks before they move data, over Gloo's connections.
#ifndef SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_
#define SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "backends/common/call_fingerprint.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/transport.h"
#include "gloo/context.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"

namespace syncline::gloo_backend {

// Runs a FingerprintExchange for each operation. The receives for the next exchange are always
// posted, so a record needs only one message: without a posted receive, Gloo's sender first asks
// the receiver for consent.
//
// Not thread-safe: it belongs to the collectives of a group, of which one runs at a time. It owns
// the records; its buffers belong to the mesh.
class CallCheck {
 public:
  // Must live until `mesh` has left.
  CallCheck(Mesh& mesh, int rank, int size);

  // Posts the receives for the first Compare. Call it once, before that.
  void Start();

  // Collective, and a barrier. OK if the ranks' calls go together; else the same MismatchError on
  // all ranks, which quotes two calls. Throws what Gloo throws: at the deadline, and when a
  // connection ends.
  absl::Status Compare(const std::shared_ptr<gloo::Context>& gloo, const CallContext& context);

 private:
  struct Round {
    backends::FingerprintRecord sent = {}, received = {};
    PersistentBuffer* out = nullptr;
    PersistentBuffer* in = nullptr;
    absl::Status posted;  // Of the next receive. It fails if the peer has left since.
  };

  void PostReceive(int round);
  absl::Status RunRounds(backends::FingerprintExchange& exchange, const Deadline& deadline);

  const int rank_;
  const int size_;
  std::vector<std::unique_ptr<Round>> rounds_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_CALL_CHECK_H_
