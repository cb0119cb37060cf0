// Finds peers whose hosts no longer answer: a host that lost its power or its network ends no
// connection.
#ifndef SYNCLINE_BACKENDS_TCP_SILENT_HOSTS_H_
#define SYNCLINE_BACKENDS_TCP_SILENT_HOSTS_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline::tcp {

// How long the kernel of a peer may be silent before the peer is lost: SYNCLINE_TCP_KEEPALIVE, in
// seconds; 30 if it is unset, InfiniteDuration if it is 0. An ArgumentError for what is no number
// of seconds from 2 to 86400, nor 0.
//
// The kernel answers for a process that computes or is stopped, so only a host is ever silent.
absl::StatusOr<absl::Duration> SilenceLimit();

// Has the kernel end the connection when it is idle and the peer's kernel does not answer for
// about `limit`.
void KeepAlive(int socket, absl::Duration limit);

// Whether the peer's kernel owes an answer to what was sent, and has been silent for `limit`. The
// kernel itself gives such a connection a quarter of an hour; TCP_USER_TIMEOUT would make that
// less, but also ends a connection whose peer answers and takes no data for that long, as one does
// that computes.
bool IsSilent(int socket, absl::Duration limit);

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_SILENT_HOSTS_H_
