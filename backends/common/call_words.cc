#include "backends/common/call_words.h"

#include "core/status.h"

namespace syncline {
namespace {

// kind, sequence, dtype, count, op, peer, tag, and the lengths of the two lists that follow.
constexpr size_t kFixedWords = 9;

bool IsIndexOf(int64_t index, size_t size) {
  return index >= 0 && index < static_cast<int64_t>(size);
}

}  // namespace

size_t MaxCallWords(int size) { return kFixedWords + 2 * static_cast<size_t>(size); }

std::vector<int64_t> ToWords(const Call& call) {
  std::vector<int64_t> words = {static_cast<int64_t>(call.kind),
                                static_cast<int64_t>(call.sequence),
                                static_cast<int64_t>(call.dtype),
                                call.count,
                                static_cast<int64_t>(call.op),
                                call.peer,
                                call.tag,
                                static_cast<int64_t>(call.counts.size()),
                                static_cast<int64_t>(call.expected.size())};
  words.insert(words.end(), call.counts.begin(), call.counts.end());
  words.insert(words.end(), call.expected.begin(), call.expected.end());
  return words;
}

absl::StatusOr<Call> FromWords(absl::Span<const int64_t> words) {
  const absl::Status not_a_call = BackendError(
      "a rank's description of its call is not understood: do all ranks run the same version of "
      "Syncline?");
  if (words.size() < kFixedWords || !IsIndexOf(words[0], AllOpKinds().size()) ||
      !IsIndexOf(words[2], AllDTypes().size()) || !IsIndexOf(words[4], AllReduceOps().size())) {
    return not_a_call;
  }
  const size_t rest = words.size() - kFixedWords;
  if (!IsIndexOf(words[7], rest + 1) || !IsIndexOf(words[8], rest - words[7] + 1)) {
    return not_a_call;
  }
  Call call{static_cast<OpKind>(words[0]), static_cast<uint64_t>(words[1]),
            static_cast<DType>(words[2]), words[3]};
  call.op = static_cast<ReduceOp>(words[4]);
  call.peer = static_cast<int>(words[5]);
  call.tag = static_cast<int>(words[6]);
  const auto counts = words.begin() + kFixedWords;
  call.counts.assign(counts, counts + words[7]);
  call.expected.assign(counts + words[7], counts + words[7] + words[8]);
  return call;
}

}  // namespace syncline
