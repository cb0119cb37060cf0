// Sends the largest gradients only, and the others later.
#ifndef SYNCLINE_DDP_HOOKS_TOP_K_HOOK_H_
#define SYNCLINE_DDP_HOOKS_TOP_K_HOOK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ddp/comm_hook.h"

namespace syncline {

// Each rank sends the `fraction` of a bucket's elements that is largest in absolute value, one at
// least; it remembers the others and adds them to its next gradients (S. Stich et al., "Sparsified
// SGD with Memory", NeurIPS 2018, algorithm 1; Y. Lin et al., "Deep Gradient Compression", ICLR
// 2018, section 3.1, without its momentum correction). So the sum of what the ranks were given is
// that of the results, times the divisor, and of what they still remember. Of float32 and float64;
// other types are averaged as they are. Bitwise equal on all ranks.
//
// Each rank receives fraction * (4 bytes + the element's) from every other: less than an all-reduce
// of float32 among n ranks if fraction < 1 / n. ArgumentError if `fraction` is not in (0, 1].
absl::StatusOr<std::shared_ptr<CommHook>> TopKHook(double fraction = 0.01);

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_TOP_K_HOOK_H_
