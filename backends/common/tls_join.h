// Joining of ranks that compare what SYNCLINE_TLS asks of their connections.
#ifndef SYNCLINE_BACKENDS_COMMON_TLS_JOIN_H_
#define SYNCLINE_BACKENDS_COMMON_TLS_JOIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/common/peer_table.h"
#include "core/base/env.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::backends {

// PeerTable::Join for backends whose connections are those of a library that does not encrypt them.
// Errors, on all ranks:
// - MismatchError: SYNCLINE_TLS is not the same on all ranks, or SYNCLINE_TLS_PLAIN lists `backend`
//   on some of them only.
// - UnsupportedError: ranks are on several hosts and SYNCLINE_TLS is on, unless SYNCLINE_TLS_PLAIN
//   lists `backend`.
// - Those of tls::SettingsFromEnvironment on one of them, and of PeerTable::Join.
absl::StatusOr<PeerTable> JoinPlain(absl::string_view backend, Store& store, int rank, int size,
                                    const absl::StatusOr<std::string>& payload,
                                    const Deadline& deadline,
                                    const PeerCheck& check_peers = nullptr,
                                    const base::EnvironmentLookup& environment = base::GetEnv);

// PeerTable::Join for backends that encrypt their connections as SYNCLINE_TLS says;
// SYNCLINE_TLS_PLAIN has no effect on them. A MismatchError on all ranks if SYNCLINE_TLS is not the
// same on all of them; other errors are those of tls::SettingsFromEnvironment on one rank, and of
// PeerTable::Join.
absl::StatusOr<PeerTable> JoinEncrypting(Store& store, int rank, int size,
                                         const absl::StatusOr<std::string>& payload,
                                         const Deadline& deadline,
                                         const PeerCheck& check_peers = nullptr,
                                         const base::EnvironmentLookup& environment = base::GetEnv);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_TLS_JOIN_H_
