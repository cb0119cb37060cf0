// What one rank called, in full: the form in which messages quote a call, and in which ranks
// compare two calls whose fingerprints differ.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_DESCRIPTION_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_DESCRIPTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/common/call_fingerprint.h"
#include "core/base/rank_ranges.h"
#include "syncline/backend.h"
#include "syncline/dtype.h"
#include "syncline/error_origin.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// Made from the record of a call when it is needed, which is when something goes wrong. Fields that
// mean nothing to `kind` keep their defaults. Copyable; borrows nothing.
struct CallDescription {
  using Counts = absl::InlinedVector<int64_t, 4>;

  explicit CallDescription(OpKind kind, uint64_t sequence, DType dtype = DType::kUInt8,
                           int64_t count = 0)
      : kind(kind), sequence(sequence), dtype(dtype), count(count) {}

  // The call of `context`. Requires context.collective.
  explicit CallDescription(const CallContext& context);

  // What a fingerprint shows. Accepts any bytes, since another process may have written them.
  explicit CallDescription(const CallFingerprint& fingerprint);

  OpKind kind;
  uint64_t sequence;
  DType dtype;
  int64_t count;  // Elements of this rank's tensor; of all_to_all, of all its inputs.
  ReduceOp reduce_op = ReduceOp::kSum;
  int peer = -1;  // The root, or the other rank of send and recv, which may be kAnySource.
  int tag = 0;
  // One for each rank: of all_gather the sizes of the outputs, of reduce_scatter and all_to_all of
  // the inputs.
  Counts counts;
  Counts expected;  // Of all_to_all: the sizes of the outputs.
  // What the user called, where that is not the kind, and the user's tensors, where the backend
  // moves others. Of a call that came from another rank `tensors` describes these, and `text` holds
  // the name and the description.
  absl::string_view name, tensors;
  std::shared_ptr<const std::vector<Tensor>> user_tensors;
  uint64_t salt = 0;  // See SaltOf.
  std::shared_ptr<const std::string> text;

  // As whole numbers, at most MaxWords(size) for a group of `size` ranks, for sending it.
  std::vector<int64_t> ToWords() const;
  static size_t MaxWords(int size);
  // The inverse, of at least as many numbers as there were; those after them are ignored. A
  // BackendError if the numbers are no call.
  static absl::StatusOr<CallDescription> FromWords(absl::Span<const int64_t> words);

  // As an ErrorOrigin names it; `rank` has called it.
  ErrorOrigin::Operation OperationOf(int rank) const;

  // "2 x float32[3], int32[4]": the user's tensors; empty if they are not known.
  std::string TensorsToString() const;
  // "all_reduce #5", "recv #2 from rank 1".
  std::string ShortName() const;
  // "all_reduce #5 (float32, 10 elements, sum)".
  std::string ToString() const;
};

// Whether two ranks may take part in one collective with these calls. Leaves out what those of
// all_to_all send each other, which need not be alike but fit: see CheckSplits.
bool SameCollective(const CallDescription& a, const CallDescription& b);

// The error of two ranks that made calls which do not go together: its origin has both.
absl::Status CallsMismatchError(absl::string_view message, const CallDescription& a, int rank_a,
                                const CallDescription& b, int rank_b);

// OK if the ranks made the same call; else a MismatchError that quotes both. Of collectives.
absl::Status CheckSame(const CallDescription& a, int rank_a, const CallDescription& b, int rank_b);

// The error of two ranks whose calls differ, also where the descriptions do not show how.
absl::Status DifferentCallsError(const CallDescription& a, int rank_a, const CallDescription& b,
                                 int rank_b);

// Whether a MismatchError of the functions above quotes two calls that look alike: what differs is
// not in them.
bool QuotesLikeCalls(const absl::Status& mismatch);

// OK if what the ranks send each other in all_to_all is what they expect; else a MismatchError
// that quotes both calls. Requires CheckSame; OK for every other operation.
absl::Status CheckSplits(const CallDescription& a, int rank_a, const CallDescription& b,
                         int rank_b);

// All of the above for all ranks at once: calls[r] is that of rank r.
absl::Status CheckCollective(absl::Span<const CallDescription* const> calls);

// OK if what rank `src` sends fits what rank `dst` receives; else a MismatchError that quotes both.
absl::Status CheckFits(const CallDescription& sent, int src, const CallDescription& received,
                       int dst);

// "has" for one, "have" for several.
std::string Have(absl::Span<const int> ranks);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_DESCRIPTION_H_
