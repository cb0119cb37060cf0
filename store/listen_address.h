// Why a process cannot listen on an address.
#ifndef SYNCLINE_STORE_LISTEN_ADDRESS_H_
#define SYNCLINE_STORE_LISTEN_ADDRESS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline {

// "127.0.0.1:80", "[::1]:80".
std::string JoinHostPort(absl::string_view host, int port);

// NetworkError that says what to do if nobody can now listen on `host` and `port` (0: any). Where
// another process has the port, the error names it if /proc shows it.
absl::Status CheckListen(const std::string& host, int port);

// The process that listens on TCP port `port` of this host; nothing if this process may not know.
std::optional<int> FindListener(int port);

}  // namespace syncline

#endif  // SYNCLINE_STORE_LISTEN_ADDRESS_H_
