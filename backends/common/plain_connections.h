// Whether ranks may send what is not encrypted.
#ifndef SYNCLINE_BACKENDS_COMMON_PLAIN_CONNECTIONS_H_
#define SYNCLINE_BACKENDS_COMMON_PLAIN_CONNECTIONS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "backends/common/peer_table.h"

namespace syncline::backends {

// For backends whose connections are those of a library that does not encrypt them. An
// UnsupportedError, on all ranks, if ranks are on several hosts and SYNCLINE_TLS is on, unless
// SYNCLINE_TLS_PLAIN lists `backend`; errors of tls::SettingsFromEnvironment.
absl::Status CheckMayBePlain(const PeerTable& peers, absl::string_view backend);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_PLAIN_CONNECTIONS_H_
