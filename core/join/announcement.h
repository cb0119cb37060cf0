// What processes tell each other by multicast before they share a store: one datagram.
#ifndef SYNCLINE_CORE_JOIN_ANNOUNCEMENT_H_
#define SYNCLINE_CORE_JOIN_ANNOUNCEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/host.h"

namespace syncline {

inline constexpr size_t kMeetingIdBytes = 16;
inline constexpr size_t kMaxJobName = 255;             // Bytes.
inline constexpr size_t kMaxAnnouncementBytes = 1200;  // Fits into one frame of any network.

struct MulticastAnnouncement {
  std::string job;
  int64_t size = 0;   // Of the world that the sender means to join.
  int64_t rank = -1;  // -1: to be assigned.
  std::string id;     // kMeetingIdBytes random bytes: tells senders apart.
  std::string view;   // Of the set of processes that the sender hears, itself included: their ids,
                      // combined by exclusive or.
  Peer peer;
  std::string store;  // "host:port" of the job's store, if the sender hosts it; else empty.

  // One datagram. With a secret it carries an HMAC.
  std::string Seal(absl::string_view secret) const;

  // Why a datagram is not an announcement: an error of kind kNetwork that says so. With a secret,
  // only those that prove it are opened, and without one only those that prove none.
  static absl::StatusOr<MulticastAnnouncement> Open(absl::string_view datagram,
                                                    absl::string_view secret);
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_ANNOUNCEMENT_H_
