// A call as whole numbers, for sending it to other ranks.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_WORDS_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/common/call.h"

namespace syncline {

// The most numbers that a call of a group of `size` ranks takes.
size_t MaxCallWords(int size);

std::vector<int64_t> ToWords(const Call& call);

// The inverse, of at least as many numbers as there were; those after them are ignored. Fails on
// numbers that are no call.
absl::StatusOr<Call> FromWords(absl::Span<const int64_t> words);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_WORDS_H_
