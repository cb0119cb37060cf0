// The TCP connections of one rank to all others, and the watch over them.
#ifndef SYNCLINE_BACKENDS_TCP_TCP_CONNECTIONS_H_
#define SYNCLINE_BACKENDS_TCP_TCP_CONNECTIONS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/connections.h"
#include "backends/common/giving_up.h"
#include "backends/common/listener.h"
#include "backends/common/peer_table.h"
#include "backends/tcp/collective_sockets.h"
#include "backends/tcp/point_to_point.h"
#include "backends/tcp/socket_options.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "syncline/backend.h"

namespace syncline::tcp {

// Two connections to each other rank, made while joining: a rank that cannot be reached is then an
// error of joining that names it, and no call has to wait for a connection. One carries the
// messages of collectives and one sends and receives, so that a collective that this rank has not
// called yet holds up no receive. With several streams there are as many for collectives.
//
// A thread sleeps until a connection ends, and finds out whether the peer has left or was lost; now
// and then it looks for hosts that are silent. It touches no data of calls. Thread-safe except
// where a method says otherwise.
class TcpConnections final : public backends::Connections {
 public:
  // Collective: returns once this rank has connected to all others. Each side of a connection has
  // then proved that it knows the listener's secret, which only ranks of the job can read in the
  // store. Errors are those of PeerTable::Join; a NetworkError or TimeoutError that names the peer
  // that cannot be reached, or whose TLS is refused; a MismatchError if mismatch_check,
  // the Comparison, SYNCLINE_TLS or SYNCLINE_TCP_STREAMS is not the same on all ranks; those of
  // SilenceLimit, StreamsFromEnvironment and Listener::Open.
  static absl::StatusOr<std::unique_ptr<TcpConnections>> Connect(const BackendConfig& config);

  ~TcpConnections() override;  // Leaves, if that has not been done.

  const backends::PeerTable& peers() const override { return peers_; }

  // How many connections carry collectives between two ranks; the same on all of them.
  int streams() const { return streams_; }

  // Starts the watch, whose thread calls `on_gone` whenever a peer has left or was lost; in the
  // latter case all waits have ended by then. Call it once, before any operation. BackendError if
  // no thread can be started.
  absl::Status Watch(std::function<void()> on_gone);

  // The collectives' is for the one thread that is in a collective.
  CollectiveSockets& collectives() { return collectives_; }
  PointToPoint& point_to_point() { return point_to_point_; }

  // Those of Connections. Leave waits until the kernels of the peers have what was sent to them,
  // and gives up after kLeaveTimeout without progress.
  void AwaitDisconnects(absl::Span<const int> ranks) override;
  void Disconnect() override;
  void Leave(absl::string_view reason) override;
  // Whether this rank has told its peers that it leaves, and has not been disconnected.
  bool has_left_in_order() const { return has_left_in_order_.load(); }
  std::map<int, std::string> left() const override { return point_to_point_.left(); }
  std::vector<int> lost() const override { return point_to_point_.lost(); }
  std::map<int, std::string> given_up() const override;

 private:
  struct Sockets {
    std::vector<std::vector<tls::Stream>> collectives;  // By rank; then by stream.
    std::vector<tls::Stream> messages;                  // By rank.
    base::UniqueFd abort_event, wake_event, stop_event;
    SocketOptions options;
    int streams;
  };

  static absl::Status ConnectAll(const BackendConfig& config, const backends::PeerTable& peers,
                                 const backends::Listener& listener, backends::GivingUp& giving_up,
                                 Sockets& sockets);

  TcpConnections(backends::PeerTable peers, Sockets sockets);

  // Ends the connections of peers whose hosts are silent.
  void EndSilent();
  void RunWatch(const std::function<void()>& on_gone);
  void EndWatch();
  // The sockets of both kinds to one peer, and to all.
  std::vector<int> SocketsOf(int peer) const;
  std::vector<int> AllSockets() const;

  const backends::PeerTable peers_;
  CollectiveSockets collectives_;
  PointToPoint point_to_point_;
  const base::UniqueFd stop_event_;  // Written once, when the watch is to end.
  const absl::Duration silence_limit_;
  mutable absl::Mutex given_up_mutex_;
  std::map<int, std::string> given_up_ ABSL_GUARDED_BY(given_up_mutex_);
  const int streams_;
  bool has_left_ = false;
  std::atomic<bool> has_left_in_order_{false};
  std::thread watch_;
};

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_TCP_CONNECTIONS_H_
