#include "backends/common/call.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"

namespace syncline {

Call Call::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  Call call{OpKind::kBroadcast, context.sequence, tensor.dtype(), tensor.numel()};
  call.peer = root;
  return call;
}

Call Call::AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) {
  return {OpKind::kAllReduce, context.sequence, tensor.dtype(), tensor.numel(), op};
}

Call Call::AllGather(const Tensor& input, const CallContext& context) {
  return {OpKind::kAllGather, context.sequence, input.dtype(), input.numel()};
}

Call Call::Barrier(const CallContext& context) { return {OpKind::kBarrier, context.sequence}; }

Call Call::Send(const Tensor& tensor, int dst, const CallContext& context) {
  Call call{OpKind::kSend, context.sequence, tensor.dtype(), tensor.numel()};
  call.peer = dst;
  call.tag = context.tag;
  return call;
}

Call Call::Recv(const Tensor& tensor, int src, const CallContext& context) {
  Call call = Send(tensor, src, context);
  call.kind = OpKind::kRecv;
  return call;
}

std::string Call::ShortName() const {
  std::string name = absl::StrCat(Name(kind), " #", sequence);
  if (kind == OpKind::kSend) absl::StrAppend(&name, " to rank ", peer);
  if (kind == OpKind::kRecv) absl::StrAppend(&name, " from rank ", peer);
  return name;
}

std::string Call::ToString() const {
  if (kind == OpKind::kBarrier) return ShortName();
  std::string details =
      absl::StrCat(Name(dtype), ", ", count, count == 1 ? " element" : " elements");
  if (kind == OpKind::kAllReduce) absl::StrAppend(&details, ", ", Name(op));
  if (kind == OpKind::kBroadcast) absl::StrAppend(&details, ", root ", peer);
  if (kind == OpKind::kSend || kind == OpKind::kRecv) absl::StrAppend(&details, ", tag ", tag);
  return absl::StrCat(ShortName(), " (", details, ")");
}

absl::Status CheckFits(const Call& sent, int src, const Call& received, int dst) {
  if (sent.dtype == received.dtype && sent.count == received.count) return absl::OkStatus();
  return MismatchError(absl::StrCat("rank ", src, " called ", sent.ToString(), ", rank ", dst,
                                    " called ", received.ToString(),
                                    ": type and number of elements must be equal"));
}

std::string NameRanks(absl::Span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  return absl::StrCat("ranks ", absl::StrJoin(ranks.first(ranks.size() - 1), ", "), " and ",
                      ranks.back());
}

std::string Have(absl::Span<const int> ranks) { return ranks.size() == 1 ? "has" : "have"; }

}  // namespace syncline
