// Connects to the server of a tcp store.
#ifndef SYNCLINE_STORE_TCP_TCP_CONNECT_H_
#define SYNCLINE_STORE_TCP_TCP_CONNECT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/tls/context.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::tcp_store {

struct ServerAddress {
  std::string host;  // A name or an address; a name is looked up as the C library does.
  int port = 0;
  std::string secret;  // The job's. Empty: neither side proves anything.
  // For which the server's certificate must be; empty: any, as of a server of this process.
  std::string certified_host = "";
  std::shared_ptr<tls::Context> tls = nullptr;  // Null: the connection is not encrypted.
};

// A connection over which both sides have proved who they are; gRPC comes next.
//
// Tries until `deadline`, as the server may start later than its clients, or close a connection to
// take another. Errors are NetworkErrors; one that comes before the deadline is final. A name that
// takes long to look up can delay the return beyond the deadline, see resolv.conf(5).
absl::StatusOr<tls::Stream> ConnectToServer(const ServerAddress& server, const Deadline& deadline);

// Whether an error is that of a server that has answered, where one of the two does not accept the
// other: it has another secret or another TLS, or is no tcp store. Annotate keeps that.
bool IsRefusal(const absl::Status& status);

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_CONNECT_H_
