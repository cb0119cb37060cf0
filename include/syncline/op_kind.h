// The operations that a backend carries out. Every other operation of the API is derived from them.
#ifndef SYNCLINE_OP_KIND_H_
#define SYNCLINE_OP_KIND_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/enum_set.h"

namespace syncline {

enum class OpKind {
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kScan,
  kExscan,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};

// All kinds, in the order of their values.
absl::Span<const OpKind> AllOpKinds();

// "broadcast", "all_reduce", ...
absl::string_view Name(OpKind kind);

// Whether elements are combined, so that the element type must allow the ReduceOp.
constexpr bool Reduces(OpKind kind) {
  constexpr EnumSet<OpKind> kKinds = {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter,
                                      OpKind::kScan, OpKind::kExscan};
  return kKinds.count(kind) != 0;
}

// Whether one rank is the root: the source of the data or their destination.
constexpr bool HasRoot(OpKind kind) {
  constexpr EnumSet<OpKind> kKinds = {OpKind::kBroadcast, OpKind::kReduce, OpKind::kGather,
                                      OpKind::kScatter};
  return kKinds.count(kind) != 0;
}

// Whether two ranks take part, not the whole group.
constexpr bool IsP2p(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

// The source of a receive that takes the first message of any rank, as MPI_ANY_SOURCE.
inline constexpr int kAnySource = -1;

}  // namespace syncline

#endif  // SYNCLINE_OP_KIND_H_
