// What the operations do to memory, said as plainly as possible: the specification of every
// backend's results.
#ifndef SYNCLINE_BACKENDS_LOCAL_REFERENCE_COLLECTIVES_H_
#define SYNCLINE_BACKENDS_LOCAL_REFERENCE_COLLECTIVES_H_

#include "absl/types/span.h"
#include "syncline/collective.h"

namespace syncline::local {

// Carries a collective out for all ranks, on the calling thread; calls[r] is that of rank r.
// Requires that the calls go together, see CheckCollective.
void RunReference(absl::Span<const Collective* const> calls);

// Carries a send and its recv out. Requires that they fit, see CheckFits.
void CopyMessage(const Collective& sent, const Collective& received);

}  // namespace syncline::local

#endif  // SYNCLINE_BACKENDS_LOCAL_REFERENCE_COLLECTIVES_H_
