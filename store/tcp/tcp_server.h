// The server of a tcp store.
#ifndef SYNCLINE_STORE_TCP_TCP_SERVER_H_
#define SYNCLINE_STORE_TCP_TCP_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/resolve.h"

namespace syncline::tcp_store {

// Holds the store's contents in memory and serves them to the processes of a job. A TCPAcceptor
// lets those in that know the job's secret; gRPC sees no connection before. Thread-safe.
class TCPServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // The one address it listens on.
    int port = 0;                    // 0 lets the system choose.
    std::optional<int> listen_fd;    // Already listens there; becomes the server's.
    std::string secret;              // What clients must know; empty lets in all.
    absl::Duration lookup_timeout = base::kResolveTimeout;  // Of `host`.
    absl::Duration time_to_prove = absl::Seconds(10);  // Then who has not proved it is put out.
  };

  // NetworkError if it cannot listen, ArgumentError if `port` is not in [0, 65535].
  static absl::StatusOr<std::unique_ptr<TCPServer>> Start(const Options& options);
  ~TCPServer();  // As Shutdown.

  const std::string& host() const;
  int port() const;

  // For monitoring: connected clients, those that have still to prove themselves among them; and
  // how many of their gets and waits are not over.
  int64_t NumClients() const;
  int64_t NumWaits() const;

  // Sends the answers that are under way and disconnects all clients, within two seconds.
  void Shutdown();

 private:
  struct Impl;

  explicit TCPServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_SERVER_H_
