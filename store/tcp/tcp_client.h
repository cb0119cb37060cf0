// The connection of a tcp store's client to the server.
#ifndef SYNCLINE_STORE_TCP_TCP_CLIENT_H_
#define SYNCLINE_STORE_TCP_TCP_CLIENT_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "store/tcp/store.pb.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tls_relay.h"
#include "syncline/deadline.h"

namespace syncline::tcp_store {

// One stream, whose requests and answers overtake each other as they like. Thread-safe. Once the
// server is gone all calls fail; there is no second try, because what it held is gone too.
//
// Cannot be used in a fork()ed child of the process that connected: calls fail there.
class TCPClient {
 public:
  // As ConnectToServer.
  static absl::StatusOr<std::unique_ptr<TCPClient>> Connect(const ServerAddress& server,
                                                            const Deadline& deadline);
  ~TCPClient();

  // Sends `request`, whose id is chosen here, and returns the answer. A get or wait that is not
  // answered by `deadline` is cancelled, which the server answers with `not_set`. NetworkError if
  // the connection is lost, TimeoutError if the server keeps silent, StoreError if the request is
  // too large.
  absl::StatusOr<wire::ServerMessage> Call(wire::ClientMessage request, const Deadline& deadline);

  // Whether the connection is known to be lost. Sends nothing.
  bool is_lost() const;

 private:
  class Stream;

  TCPClient(std::unique_ptr<TLSRelay> relay, std::unique_ptr<Stream> stream);

  const pid_t pid_;
  std::unique_ptr<TLSRelay> relay_;  // Null if the connection is not encrypted.
  std::unique_ptr<Stream> stream_;
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_CLIENT_H_
