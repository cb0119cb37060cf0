#include "syncline/op_kind.h"

namespace syncline {
namespace {

constexpr OpKind kAllOpKinds[] = {
    OpKind::kBroadcast, OpKind::kAllReduce, OpKind::kReduce,        OpKind::kAllGather,
    OpKind::kGather,    OpKind::kScatter,   OpKind::kReduceScatter, OpKind::kScan,
    OpKind::kExscan,    OpKind::kAllToAll,  OpKind::kBarrier,       OpKind::kSend,
    OpKind::kRecv,
};

}  // namespace

absl::Span<const OpKind> AllOpKinds() { return kAllOpKinds; }

absl::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kGather:
      return "gather";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kScan:
      return "scan";
    case OpKind::kExscan:
      return "exscan";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
  }
  return "unknown operation";
}

}  // namespace syncline
