// The datagram by which a process announces itself to the others of its job, before they share a
// store.
#ifndef SYNCLINE_CORE_JOIN_MULTICAST_ANNOUNCEMENT_H_
#define SYNCLINE_CORE_JOIN_MULTICAST_ANNOUNCEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/host.h"

namespace syncline::join {

inline constexpr size_t kProcessIdBytes = 16;
inline constexpr size_t kMaxJobName = 255;             // Bytes.
inline constexpr size_t kMaxAnnouncementBytes = 1200;  // Fits into one frame of any network.

// A plain value; threads may read it together.
struct MulticastAnnouncement {
  std::string job;
  int size = 0;      // Of the world that the sender means to join.
  int rank = -1;     // -1: to be assigned.
  std::string id;    // kProcessIdBytes random bytes: tells senders apart.
  std::string view;  // Of the set of processes that the sender hears, itself included: their ids,
                     // combined by exclusive or.
  Peer peer;
  std::string store;  // "host:port" of the job's store, if the sender hosts it; else empty.

  // The datagram. With a secret it carries an HMAC, and may be encrypted (tls::SealText).
  std::string Seal(absl::string_view secret, bool is_encrypted = false) const;

  // The announcement in a datagram. NetworkError that says why if there is none. With a secret it
  // accepts only datagrams whose HMAC proves that secret, and without one only those without HMAC;
  // of these, either the encrypted ones or the others.
  static absl::StatusOr<MulticastAnnouncement> Open(absl::string_view datagram,
                                                    absl::string_view secret,
                                                    bool is_encrypted = false);
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_MULTICAST_ANNOUNCEMENT_H_
