// A small HTTP server inside the launcher's poll loop: --metrics-port.
#ifndef SYNCLINE_LAUNCH_MONITOR_METRICS_SERVER_H_
#define SYNCLINE_LAUNCH_MONITOR_METRICS_SERVER_H_

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "launch/clock.h"
#include "launch/monitor/job_status.h"

namespace syncline::launch {

// GET /metrics (Prometheus), /status (the NodeStatus as JSON) and /healthz (while the loop turns),
// on the loopback interface, for one request per connection.
//
// Never blocks: sockets are non-blocking. Requests, clients and the time of each are bounded, and a
// client that is too slow is dropped. An HTTP library would bring its own threads, or an event loop
// beside the launcher's; the part of HTTP that a scraper needs is small. Owns its sockets. For the
// main thread; not thread-safe.
class MetricsServer {
 public:
  using Snapshot = std::function<NodeStatus()>;  // Called for a request.

  static constexpr int kMaxClients = 16;
  static constexpr size_t kMaxRequest = 8 << 10;                // Bytes, headers included.
  static constexpr absl::Duration kTimeout = absl::Seconds(2);  // For a client, in all.

  // `port` 0 lets the system choose. NetworkError if the port is taken. `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(int port, Snapshot snapshot,
                                                              const Clock& clock);
  ~MetricsServer();

  // The response to `request`, which ends with an empty line. Asks for the status if that is what
  // is wanted.
  static std::string Respond(absl::string_view request, const Snapshot& snapshot);

  int port() const { return port_; }
  std::string url() const;  // Of the metrics, for people.

  // In a loop around poll(): adds what it waits for ...
  void AddTo(std::vector<pollfd>* fds) const;
  // ... which must be back by this time (InfiniteFuture: it has no deadline) ...
  absl::Time deadline() const;
  // ... with what poll() said. Descriptors of others are skipped.
  void Handle(const std::vector<pollfd>& fds);

 private:
  struct Client;

  MetricsServer(base::UniqueFd listener, int port, Snapshot snapshot, const Clock& clock);

  bool CanAccept() const;
  void Accept();
  // Goes on as far as it can; false: the client is done with, for better or worse.
  bool Serve(Client& client);
  bool ReadRequest(Client& client);
  bool WriteResponse(Client& client);
  bool Drain(Client& client);

  const base::UniqueFd listener_;
  const int port_;
  const Snapshot snapshot_;
  const Clock& clock_;
  absl::Time accept_after_ = absl::InfinitePast();  // Later only if descriptors ran out.
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_METRICS_SERVER_H_
