#include "backends/common/call_description.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::string_view kAlike = ", which differ in a tensor that is not shown here";

// kind, sequence, dtype, count, reduce_op, peer, tag, the lengths of the two lists that follow,
// salt, and the length in bytes of the text after the lists: the name, a space, and the tensors,
// cut short.
constexpr size_t kFixedWords = 11;
constexpr size_t kMaxTextWords = 32;
constexpr size_t kMaxTextBytes = kMaxTextWords * sizeof(int64_t);

// The count of a call that is only known by its fingerprint, which does not show it.
constexpr int64_t kUnknownCount = -1;

bool IsIndexOf(int64_t index, size_t size) {
  return index >= 0 && index < static_cast<int64_t>(size);
}

std::string TextOf(const CallDescription& call) {
  std::string text = absl::StrCat(call.name, " ", call.TensorsToString());
  if (text.size() > kMaxTextBytes) {
    text.resize(kMaxTextBytes);
    text.replace(text.size() - 3, 3, "...");
  }
  return text;
}

size_t WordsFor(size_t bytes) { return (bytes + sizeof(int64_t) - 1) / sizeof(int64_t); }

CallDescription::Counts SizesOf(absl::Span<const Tensor> tensors) {
  CallDescription::Counts sizes;
  sizes.reserve(tensors.size());
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

// The value at `index`, or the last one for an index that is out of range.
template <typename Values>
auto AtOrLast(const Values& values, size_t index) {
  return values[std::min(index, values.size() - 1)];
}

std::string Elements(int64_t count) {
  return absl::StrCat(count, count == 1 ? " element" : " elements");
}

std::string List(const CallDescription::Counts& counts) {
  return absl::StrCat("[", absl::StrJoin(counts, ", "), "]");
}

// "10 elements", "10 elements per rank", "[3, 0, 5] elements per rank".
std::string DescribeCounts(const CallDescription& call) {
  const CallDescription::Counts& counts = call.counts;
  if (call.kind == OpKind::kGather || call.kind == OpKind::kScatter) {
    return absl::StrCat(Elements(call.count), " per rank");
  }
  if (counts.empty()) return Elements(call.count);
  if (call.kind == OpKind::kAllToAll) {
    return absl::StrCat("sends ", List(counts), ", expects ", List(call.expected), " elements");
  }
  const bool even =
      std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
  return absl::StrCat(even ? Elements(counts[0]) : absl::StrCat(List(counts), " elements"),
                      " per rank");
}

std::string Quote(const CallDescription& a, int rank_a, const CallDescription& b, int rank_b) {
  return absl::StrCat("rank ", rank_a, " called ", a.ToString(), ", rank ", rank_b, " called ",
                      b.ToString());
}

}  // namespace

CallDescription::CallDescription(const CallContext& context)
    : CallDescription(context.quoted().kind, context.sequence, context.quoted().dtype()) {
  const Collective& call = context.quoted();
  reduce_op = call.reduce_op;
  peer = call.peer;
  tag = static_cast<int>(call.tag);
  name = call.user_name;
  salt = SaltOf(context);
  if (context.mismatch_check == MismatchCheck::kOn) user_tensors = call.user_tensors;
  if (call.tensor != nullptr) count = call.tensor->numel();
  if (kind == OpKind::kAllGather) counts = SizesOf(call.outputs);
  if (kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll) counts = SizesOf(call.inputs);
  if (kind == OpKind::kAllToAll) {
    expected = SizesOf(call.outputs);
    count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
}

CallDescription::CallDescription(const CallFingerprint& fingerprint)
    : CallDescription(AtOrLast(AllOpKinds(), fingerprint.kind()), fingerprint.sequence,
                      AtOrLast(AllDTypes(), fingerprint.dtype()), fingerprint.count) {
  reduce_op = AtOrLast(AllReduceOps(), fingerprint.reduce_op());
  peer = fingerprint.peer();
  salt = fingerprint.hash;
  if (!HasFixedSize(kind)) count = kUnknownCount;
}

ErrorOrigin::Operation CallDescription::OperationOf(int rank) const {
  ErrorOrigin::Operation operation = {std::string(name.empty() ? Name(kind) : name), sequence};
  if (IsP2p(kind)) {
    operation.peer = peer;
    operation.rank = rank;
  }
  return operation;
}

std::string CallDescription::ShortName() const {
  const std::string numbered = absl::StrCat(name.empty() ? Name(kind) : name, " #", sequence);
  if (!IsP2p(kind)) return numbered;
  const std::string other = peer == kAnySource ? "any rank" : absl::StrCat("rank ", peer);
  return absl::StrCat(numbered, kind == OpKind::kSend ? " to " : " from ", other);
}

std::string CallDescription::TensorsToString() const {
  return user_tensors != nullptr ? DescribeTensors(*user_tensors) : std::string(tensors);
}

std::string CallDescription::ToString() const {
  if (kind == OpKind::kBarrier) return ShortName();
  std::string details = TensorsToString();
  if (details.empty()) {
    details = std::string(Name(dtype));
    if (count != kUnknownCount) absl::StrAppend(&details, ", ", DescribeCounts(*this));
  }
  if (Reduces(kind)) absl::StrAppend(&details, ", ", Name(reduce_op));
  if (IsP2p(kind)) {
    absl::StrAppend(&details, ", tag ", tag);
  } else if (peer >= 0) {
    absl::StrAppend(&details, ", root ", peer);
  }
  return absl::StrCat(ShortName(), " (", details, ")");
}

size_t CallDescription::MaxWords(int size) {
  return kFixedWords + 2 * static_cast<size_t>(size) + kMaxTextWords;
}

std::vector<int64_t> CallDescription::ToWords() const {
  const std::string text = TextOf(*this);
  std::vector<int64_t> words = {static_cast<int64_t>(kind),
                                static_cast<int64_t>(sequence),
                                static_cast<int64_t>(dtype),
                                count,
                                static_cast<int64_t>(reduce_op),
                                peer,
                                tag,
                                static_cast<int64_t>(counts.size()),
                                static_cast<int64_t>(expected.size()),
                                static_cast<int64_t>(salt),
                                static_cast<int64_t>(text.size())};
  words.insert(words.end(), counts.begin(), counts.end());
  words.insert(words.end(), expected.begin(), expected.end());
  const size_t lists_end = words.size();
  words.resize(lists_end + WordsFor(text.size()));
  std::memcpy(&words[lists_end], text.data(), text.size());
  return words;
}

absl::StatusOr<CallDescription> CallDescription::FromWords(absl::Span<const int64_t> words) {
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
  CallDescription call{static_cast<OpKind>(words[0]), static_cast<uint64_t>(words[1]),
                       static_cast<DType>(words[2]), words[3]};
  call.reduce_op = static_cast<ReduceOp>(words[4]);
  call.peer = static_cast<int>(words[5]);
  call.tag = static_cast<int>(words[6]);
  const auto counts = words.begin() + kFixedWords;
  call.counts.assign(counts, counts + words[7]);
  call.expected.assign(counts + words[7], counts + words[7] + words[8]);
  if (call.kind == OpKind::kAllToAll && call.counts.size() != call.expected.size()) {
    return not_a_call;
  }
  call.salt = static_cast<uint64_t>(words[9]);
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

bool SameCollective(const CallDescription& a, const CallDescription& b) {
  if (a.kind != b.kind || a.sequence != b.sequence || a.dtype != b.dtype ||
      a.reduce_op != b.reduce_op || a.peer != b.peer || a.salt != b.salt) {
    return false;
  }
  if (a.kind == OpKind::kAllToAll) return a.counts.size() == b.counts.size();
  return a.counts == b.counts && (a.count == b.count || !a.counts.empty());
}

absl::Status CallsMismatchError(absl::string_view message, const CallDescription& a, int rank_a,
                                const CallDescription& b, int rank_b) {
  ErrorOrigin origin;
  origin.operations = {a.OperationOf(rank_a)};
  if (const ErrorOrigin::Operation other = b.OperationOf(rank_b);
      !(other == origin.operations[0])) {
    origin.operations.push_back(other);
  }
  origin.ranks = {rank_a, rank_b};
  return WithOrigin(MismatchError(message), std::move(origin));
}

absl::Status CheckSame(const CallDescription& a, int rank_a, const CallDescription& b, int rank_b) {
  if (SameCollective(a, b)) return absl::OkStatus();
  const bool alike = a.ToString() == b.ToString();
  const std::string text = absl::StrCat(Quote(a, rank_a, b, rank_b), alike ? kAlike : "",
                                        ": all ranks must make the same calls in the same order");
  return CallsMismatchError(text, a, rank_a, b, rank_b);
}

bool QuotesLikeCalls(const absl::Status& mismatch) {
  return KindOf(mismatch) == ErrorKind::kMismatch && absl::StrContains(mismatch.message(), kAlike);
}

absl::Status DifferentCallsError(const CallDescription& a, int rank_a, const CallDescription& b,
                                 int rank_b) {
  if (rank_b < rank_a) return DifferentCallsError(b, rank_b, a, rank_a);
  SYNCLINE_RETURN_IF_ERROR(CheckSame(a, rank_a, b, rank_b));
  return CallsMismatchError(absl::StrCat(Quote(a, rank_a, b, rank_b),
                                         ": all ranks must make the same calls in the same order"),
                            a, rank_a, b, rank_b);
}

absl::Status CheckSplits(const CallDescription& a, int rank_a, const CallDescription& b,
                         int rank_b) {
  SYNCLINE_DCHECK(SameCollective(a, b));
  if (a.kind != OpKind::kAllToAll) return absl::OkStatus();
  auto check = [](const CallDescription& from, int src, const CallDescription& to, int dst) {
    const int64_t sent = from.counts[dst], expected = to.expected[src];
    if (sent == expected) return absl::OkStatus();
    const std::string text =
        absl::StrCat(Quote(from, src, to, dst), ": rank ", src, " sends ", Elements(sent),
                     " to rank ", dst, ", which expects ", expected);
    return CallsMismatchError(text, from, src, to, dst);
  };
  SYNCLINE_RETURN_IF_ERROR(check(a, rank_a, b, rank_b));
  return check(b, rank_b, a, rank_a);
}

absl::Status CheckCollective(absl::Span<const CallDescription* const> calls) {
  const int size = static_cast<int>(calls.size());
  for (int rank = 1; rank < size; ++rank) {
    SYNCLINE_RETURN_IF_ERROR(CheckSame(*calls[0], 0, *calls[rank], rank));
  }
  if (calls[0]->kind != OpKind::kAllToAll) return absl::OkStatus();
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      SYNCLINE_RETURN_IF_ERROR(CheckSplits(*calls[a], a, *calls[b], b));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFits(const CallDescription& sent, int src, const CallDescription& received,
                       int dst) {
  if (sent.dtype == received.dtype && sent.count == received.count) return absl::OkStatus();
  const std::string text =
      absl::StrCat(Quote(sent, src, received, dst), ": type and number of elements must be equal");
  return CallsMismatchError(text, sent, src, received, dst);
}

std::string Have(absl::Span<const int> ranks) { return ranks.size() == 1 ? "has" : "have"; }

}  // namespace syncline::backends
