// The messages of collectives: one connection to each peer, which carries nothing else.
#ifndef SYNCLINE_BACKENDS_TCP_COLLECTIVE_SOCKETS_H_
#define SYNCLINE_BACKENDS_TCP_COLLECTIVE_SOCKETS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "backends/common/message_transport.h"
#include "backends/common/peer_table.h"
#include "backends/common/socket_streams.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::tcp {

// A header goes before each message, and receiver and sender agree on its length before any memory
// is touched that the message is not for. A message that no receive waits for stays in the kernel,
// whose buffers bound what a peer can be ahead.
//
// Used by the thread of the one collective that is under way; only Abort, has_ended and the sockets
// may be used beside it. Owns the sockets.
class CollectiveSockets {
 public:
  // `streams` has as many for each rank, and none for this one. `peers` must outlive this.
  CollectiveSockets(const backends::PeerTable& peers, std::vector<std::vector<tls::Stream>> streams,
                    base::UniqueFd abort_event);

  // Those of SocketStreams.
  void Abort() { streams_.Abort(); }
  bool has_ended(int peer) const { return streams_.has_ended(peer); }
  absl::Status late() const { return streams_.late(); }
  std::vector<int> sockets(int peer) const { return streams_.sockets(peer); }
  void Close() { streams_.Close(); }

 private:
  friend class TcpMessages;

  struct Header {
    uint32_t magic;
    uint32_t reserved;
    uint64_t bytes;
  };
  struct Expected {
    Header header;
    uint64_t bytes;
    uint64_t begin;  // Where in the stream of the connection the header begins.
  };
  struct Link {
    std::deque<Header> sent_headers;    // Of messages that may not have gone yet.
    std::deque<Expected> expectations;  // Of messages that may not have come yet.
  };

  void Send(int to, const void* data, size_t nbytes);
  void Receive(int from, void* data, size_t nbytes);
  absl::Status CheckHeaders(int peer);

  const backends::PeerTable& peers_;
  backends::SocketStreams streams_;
  std::vector<Link> links_;  // By rank.
};

// The transport of one collective.
class TcpTransport final : public backends::MessageTransport {
 public:
  TcpTransport(CollectiveSockets& sockets, int rank, int size, const Deadline& deadline)
      : MessageTransport(rank, size), sockets_(sockets), deadline_(deadline) {}

  std::unique_ptr<backends::Messages> NewMessages() override;

 private:
  CollectiveSockets& sockets_;
  const Deadline& deadline_;
};

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_COLLECTIVE_SOCKETS_H_
