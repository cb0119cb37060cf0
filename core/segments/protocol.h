// What a segment manager and its clients send each other, over an abstract Unix socket of sequenced
// packets. Both refuse processes of other users.
#ifndef SYNCLINE_CORE_SEGMENTS_PROTOCOL_H_
#define SYNCLINE_CORE_SEGMENTS_PROTOCOL_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/base/sockets.h"
#include "core/segments/segment_ledger.h"

namespace syncline::segments {

// The manager sends a client its number first. Requests are not answered, except kAdopt.
struct Greeting {
  static constexpr uint64_t kMagic = 0x31676573636e7973;  // "syncseg1".
  uint64_t magic = kMagic;
  ClientId client = 0;
};

struct Request {
  enum Kind : uint32_t {
    kCarry = 1,  // A message of the client carries the segment.
    kDrop,       // No longer: it was not sent.
    kUse,        // The client maps the segment.
    kClaim,      // The same, out of a message of `sender`, which is no longer.
    kDiscard,    // It got a message of `sender`, and does not map the segment.
    kRelease,    // It no longer maps it.
    kAdopt,      // As kUse, but only if the segment is not free. A byte answers: 1 if so.
    kLeave,      // It ends of its own accord: its messages stay.
  };
  Kind kind = kCarry;
  SegmentKey segment;
  ClientId sender = 0;
};

// The address of the manager of this name.
base::SocketAddress ManagerAddress(absl::string_view manager);

// Whether the process at the other end of a connection is of this user.
bool IsOwnUser(int connection);

}  // namespace syncline::segments

#endif  // SYNCLINE_CORE_SEGMENTS_PROTOCOL_H_
