// Compares the calls of all ranks by messages, before they move data.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_COMPARISON_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_COMPARISON_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/message_transport.h"
#include "syncline/backend.h"

namespace syncline::backends {

// Runs all rounds of an exchange, over whatever the backend has for short messages.
using RunRounds = absl::FunctionRef<absl::Status(FingerprintExchange& exchange)>;

// Collective, and a barrier. OK if the ranks' calls go together; else the same MismatchError on all
// ranks, which quotes two calls. Takes as many rounds as a FingerprintExchange has, and, where the
// sizes of an all_to_all are uneven, an exchange of these over `messages` and as many rounds again.
// Other errors, and exceptions, are those of the transport and of `run_rounds`.
absl::Status CompareCalls(MessageTransport& messages, const CallContext& context,
                          RunRounds run_rounds);

// Collective, for ranks that know that their calls differ: all ranks send each other their calls in
// full and return the same MismatchError. Their operations may have different numbers, so
// `messages` must be of a transport that does not depend on them.
absl::Status GatherCalls(MessageTransport& messages, const CallContext& context);

// A MismatchError that names the ranks, unless all of them compare their calls or none does: those
// that do would wait for the others. Has a value for each rank.
absl::Status CheckAllCompareOrNone(absl::Span<const MismatchCheck> of_ranks);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_COMPARISON_H_
