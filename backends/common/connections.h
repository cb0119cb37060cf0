// What the lifecycle of a group asks of the connections between its ranks.
#ifndef SYNCLINE_BACKENDS_COMMON_CONNECTIONS_H_
#define SYNCLINE_BACKENDS_COMMON_CONNECTIONS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/common/peer_table.h"

namespace syncline::backends {

// One rank's connections to all others, where each backend has its own. Thread-safe except where a
// method says otherwise.
class Connections {
 public:
  virtual ~Connections() = default;

  virtual const PeerTable& peers() const = 0;

  // Of those of `ranks` whose processes have ended, the connections are about to end too: waits for
  // that, shortly. Then left() and lost() tell which of these ranks had left before.
  virtual void AwaitDisconnects(absl::Span<const int> ranks) = 0;

  // Makes all operations under way, and all later ones, end now; and soon those of the peers.
  // Idempotent.
  virtual void Disconnect() = 0;

  // Sends a leave message with `reason` to all peers: this rank is fine but takes part no more.
  // Then closes the connections, once the peers have what was sent to them or after a short time.
  // After a Disconnect it only closes. Requires that no operation is under way, and is called by
  // one thread at a time. Idempotent.
  virtual void Leave(absl::string_view reason) = 0;

  // The peers that have sent a leave message, with their reasons; and those whose connection broke
  // without one, before this rank disconnected itself.
  virtual std::map<int, std::string> left() const = 0;
  virtual std::vector<int> lost() const = 0;
  // Of which of those this rank has ended the connection itself, and why: "not answered for 5s".
  virtual std::map<int, std::string> given_up() const { return {}; }
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_CONNECTIONS_H_
