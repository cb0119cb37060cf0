#include "core/backend.h"

namespace syncline {

absl::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllGather:
      return "all_gather";
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
