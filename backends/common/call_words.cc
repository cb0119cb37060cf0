#include "backends/common/call_words.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// kind, sequence, dtype, count, op, peer, tag, the lengths of the two lists that follow, form, and
// the length in bytes of the text after the lists: the name, a space, and the tensors, cut short.
constexpr size_t kFixedWords = 11;
constexpr size_t kMaxTextWords = 32;
constexpr size_t kMaxTextBytes = kMaxTextWords * sizeof(int64_t);

bool IsIndexOf(int64_t index, size_t size) {
  return index >= 0 && index < static_cast<int64_t>(size);
}

std::string TextOf(const Call& call) {
  std::string text = absl::StrCat(call.name, " ", call.tensors);
  if (text.size() > kMaxTextBytes) {
    text.resize(kMaxTextBytes);
    text.replace(text.size() - 3, 3, "...");
  }
  return text;
}

size_t WordsFor(size_t bytes) { return (bytes + sizeof(int64_t) - 1) / sizeof(int64_t); }

}  // namespace

size_t MaxCallWords(int size) {
  return kFixedWords + 2 * static_cast<size_t>(size) + kMaxTextWords;
}

std::vector<int64_t> ToWords(const Call& call) {
  const std::string text = TextOf(call);
  std::vector<int64_t> words = {static_cast<int64_t>(call.kind),
                                static_cast<int64_t>(call.sequence),
                                static_cast<int64_t>(call.dtype),
                                call.count,
                                static_cast<int64_t>(call.op),
                                call.peer,
                                call.tag,
                                static_cast<int64_t>(call.counts.size()),
                                static_cast<int64_t>(call.expected.size()),
                                static_cast<int64_t>(call.form),
                                static_cast<int64_t>(text.size())};
  words.insert(words.end(), call.counts.begin(), call.counts.end());
  words.insert(words.end(), call.expected.begin(), call.expected.end());
  const size_t lists_end = words.size();
  words.resize(lists_end + WordsFor(text.size()));
  std::memcpy(&words[lists_end], text.data(), text.size());
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
  if (!IsIndexOf(words[7], rest + 1) || !IsIndexOf(words[8], rest - words[7] + 1) ||
      !IsIndexOf(words[10], kMaxTextBytes + 1) ||
      WordsFor(words[10]) > rest - words[7] - words[8]) {
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
  call.form = static_cast<uint64_t>(words[9]);
  const auto lists_end = words.subspan(kFixedWords + words[7] + words[8]);
  call.text = std::make_shared<const std::string>(reinterpret_cast<const char*>(lists_end.data()),
                                                  words[10]);
  const absl::string_view text = *call.text;
  const size_t space = text.find(' ');
  if (space == text.npos) return not_a_call;
  call.name = text.substr(0, space);
  call.tensors = text.substr(space + 1);
  return call;
}

}  // namespace syncline
