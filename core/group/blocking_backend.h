// A backend whose calls block.
#ifndef SYNCLINE_CORE_GROUP_BLOCKING_BACKEND_H_
#define SYNCLINE_CORE_GROUP_BLOCKING_BACKEND_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/completion.h"

namespace syncline::group {

// Turns Backend::Run into calls of one function that blocks. premul_sum reaches it with tensors
// whose elements are multiplied already, and is then a sum. Several calls in one Run are carried
// out on a thread each, so that a send and a receive do not wait for each other.
//
// TypedBackend (backends/common/typed_backend.h) derives from it, for backends that do something
// else for each operation.
class BlockingBackend : public Backend {
 public:
  // `rank` is the one of which this is the end.
  explicit BlockingBackend(int rank) : rank_(rank) {}

  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) final;
  absl::StatusOr<int> RunAndWait(const Collective& collective, const CallContext& context) final;

 protected:
  // Carries out the call whose record is `context.collective`, and returns when this rank's part of
  // it is done: the rank that sent, for a receive, else 0.
  virtual absl::StatusOr<int> RunBlocking(const CallContext& context) = 0;

  int rank() const { return rank_; }

 private:
  absl::StatusOr<int> RunEach(absl::Span<const Collective> collectives, const CallContext& context);
  absl::StatusOr<int> RunPremultiplied(const Collective& collective, const CallContext& context);
  absl::StatusOr<int> RunRecorded(const Collective& collective, CallContext context);

  const int rank_;
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_BLOCKING_BACKEND_H_
