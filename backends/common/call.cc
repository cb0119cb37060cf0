#include "backends/common/call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace syncline {
namespace {

Call OfKind(OpKind kind, const CallContext& context) {
  Call call(kind, context.sequence);
  call.name = context.form.name;
  call.tensors = context.form.tensors;
  call.form = context.form.hash;
  return call;
}

Call OfTensor(OpKind kind, const Tensor& tensor, const CallContext& context) {
  Call call = OfKind(kind, context);
  call.dtype = tensor.dtype();
  call.count = tensor.numel();
  return call;
}

Call Rooted(OpKind kind, const Tensor& tensor, int root, const CallContext& context) {
  Call call = OfTensor(kind, tensor, context);
  call.peer = root;
  return call;
}

Call Message(OpKind kind, const Tensor& tensor, int peer, const CallContext& context) {
  Call call = Rooted(kind, tensor, peer, context);
  call.tag = context.tag;
  return call;
}

Call::Counts SizesOf(absl::Span<const Tensor> tensors) {
  Call::Counts sizes;
  sizes.reserve(tensors.size());
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

std::string Elements(int64_t count) {
  return absl::StrCat(count, count == 1 ? " element" : " elements");
}

std::string List(const Call::Counts& counts) {
  return absl::StrCat("[", absl::StrJoin(counts, ", "), "]");
}

// "10 elements", "10 elements per rank", "[3, 0, 5] elements per rank".
std::string DescribeCounts(const Call& call) {
  const Call::Counts& counts = call.counts;
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

std::string Quote(const Call& a, int rank_a, const Call& b, int rank_b) {
  return absl::StrCat("rank ", rank_a, " called ", a.ToString(), ", rank ", rank_b, " called ",
                      b.ToString());
}

}  // namespace

Call Call::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  return Rooted(OpKind::kBroadcast, tensor, root, context);
}

Call Call::AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) {
  Call call = OfTensor(OpKind::kAllReduce, tensor, context);
  call.op = op;
  return call;
}

Call Call::Reduce(const Tensor& tensor, ReduceOp op, int root, const CallContext& context) {
  Call call = Rooted(OpKind::kReduce, tensor, root, context);
  call.op = op;
  return call;
}

Call Call::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                     const CallContext& context) {
  Call call = OfTensor(OpKind::kAllGather, input, context);
  call.counts = SizesOf(outputs);
  return call;
}

Call Call::Gather(const Tensor& input, int root, const CallContext& context) {
  return Rooted(OpKind::kGather, input, root, context);
}

Call Call::Scatter(const Tensor& output, int root, const CallContext& context) {
  return Rooted(OpKind::kScatter, output, root, context);
}

Call Call::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                         const CallContext& context) {
  Call call = OfTensor(OpKind::kReduceScatter, output, context);
  call.op = op;
  call.counts = SizesOf(inputs);
  return call;
}

Call Call::AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                    const CallContext& context) {
  Call call = OfKind(OpKind::kAllToAll, context);
  call.dtype = inputs[0].dtype();
  for (const Tensor& input : inputs) call.count += input.numel();
  call.counts = SizesOf(inputs);
  call.expected = SizesOf(outputs);
  return call;
}

Call Call::Barrier(const CallContext& context) { return OfKind(OpKind::kBarrier, context); }

Call Call::Send(const Tensor& tensor, int dst, const CallContext& context) {
  return Message(OpKind::kSend, tensor, dst, context);
}

Call Call::Recv(const Tensor& tensor, int src, const CallContext& context) {
  return Message(OpKind::kRecv, tensor, src, context);
}

std::string Call::ShortName() const {
  const std::string numbered = absl::StrCat(name.empty() ? Name(kind) : name, " #", sequence);
  if (!IsP2p(kind)) return numbered;
  const std::string other = peer == kAnySource ? "any rank" : absl::StrCat("rank ", peer);
  return absl::StrCat(numbered, kind == OpKind::kSend ? " to " : " from ", other);
}

std::string Call::ToString() const {
  if (kind == OpKind::kBarrier) return ShortName();
  std::string details = tensors.empty() ? absl::StrCat(Name(dtype), ", ", DescribeCounts(*this))
                                        : std::string(tensors);
  if (Reduces(kind)) absl::StrAppend(&details, ", ", Name(op));
  if (IsP2p(kind)) {
    absl::StrAppend(&details, ", tag ", tag);
  } else if (peer >= 0) {
    absl::StrAppend(&details, ", root ", peer);
  }
  return absl::StrCat(ShortName(), " (", details, ")");
}

bool SameCollective(const Call& a, const Call& b) {
  if (a.kind != b.kind || a.sequence != b.sequence || a.dtype != b.dtype || a.op != b.op ||
      a.peer != b.peer || a.form != b.form) {
    return false;
  }
  if (a.kind == OpKind::kAllToAll) return a.counts.size() == b.counts.size();
  return a.counts == b.counts && (a.count == b.count || !a.counts.empty());
}

absl::Status CheckSame(const Call& a, int rank_a, const Call& b, int rank_b) {
  if (SameCollective(a, b)) return absl::OkStatus();
  const bool alike = a.ToString() == b.ToString();
  return MismatchError(absl::StrCat(
      Quote(a, rank_a, b, rank_b), alike ? ", which differ in a tensor that is not shown here" : "",
      ": all ranks must make the same calls in the same order"));
}

absl::Status CheckSplits(const Call& a, int rank_a, const Call& b, int rank_b) {
  if (a.kind != OpKind::kAllToAll) return absl::OkStatus();
  auto check = [](const Call& from, int src, const Call& to, int dst) {
    const int64_t sent = from.counts[dst], expected = to.expected[src];
    if (sent == expected) return absl::OkStatus();
    return MismatchError(absl::StrCat(Quote(from, src, to, dst), ": rank ", src, " sends ",
                                      Elements(sent), " to rank ", dst, ", which expects ",
                                      expected));
  };
  SYNCLINE_RETURN_IF_ERROR(check(a, rank_a, b, rank_b));
  return check(b, rank_b, a, rank_a);
}

absl::Status CheckCollective(absl::Span<const Call* const> calls) {
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

absl::Status CheckFits(const Call& sent, int src, const Call& received, int dst) {
  if (sent.dtype == received.dtype && sent.count == received.count) return absl::OkStatus();
  return MismatchError(
      absl::StrCat(Quote(sent, src, received, dst), ": type and number of elements must be equal"));
}

std::string Have(absl::Span<const int> ranks) { return ranks.size() == 1 ? "has" : "have"; }

}  // namespace syncline
