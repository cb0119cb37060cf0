// The TCP connections of one rank on its rail: one to the rank of every other node.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/common/listener.h"
#include "backends/common/socket_streams.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::hierarchical {

// The streams of SocketStreams, where members of the rail are numbered by their nodes. Without
// headers: a fingerprint and what follows it are one packet.
//
// Not thread-safe, except where a method says so.
class RailSockets {
 public:
  struct Member {
    int rank;              // In the group.
    std::string name;      // For messages: "rank 3 (host b, pid 81)".
    std::string endpoint;  // Of its Listener.
  };

  // Collective: connects all `members`, of which this rank is members[own], with its `listener`, by
  // so many `streams` each, and agrees with them on the window. A TimeoutError names the members
  // that did not come; a NetworkError, the member that cannot be reached. Errors of `check`, which
  // is called now and then, end it too.
  static absl::StatusOr<std::unique_ptr<RailSockets>> Connect(
      const backends::Listener& listener, absl::Span<const Member> members, int own, int streams,
      const Deadline& deadline, absl::FunctionRef<absl::Status()> check);

  using Streams = std::vector<std::vector<tls::Stream>>;  // By node; then by number.

  // Of streams that are connected, as many to each other node. The window is this rank's.
  RailSockets(absl::Span<const Member> members, Streams streams);
  RailSockets(const RailSockets&) = delete;
  RailSockets& operator=(const RailSockets&) = delete;

  // See SocketStreams.
  void Send(int to, const void* data, size_t bytes) { streams_.Send(to, data, bytes); }
  void Receive(int from, void* data, size_t bytes) { streams_.Receive(from, data, bytes); }
  uint64_t bytes_to_send(int to) const { return streams_.bytes_to_send(to); }
  uint64_t bytes_to_receive(int from) const { return streams_.bytes_to_receive(from); }
  uint64_t bytes_received(int from) const { return streams_.bytes_received(from); }
  absl::Status AwaitAll(const Deadline& deadline) { return streams_.AwaitAll(deadline); }
  absl::Status MakeProgress() { return streams_.MakeProgress(); }
  void SendNow() { streams_.SendNow(); }

  // Wait until so many bytes, counted as above, have gone or come.
  absl::Status AwaitSent(int to, uint64_t bytes, const Deadline& deadline);
  absl::Status AwaitReceived(int from, uint64_t bytes, const Deadline& deadline);

  // Waits for what depends on these numbers and on is_sent. Does not fail because nothing can be
  // sent any more to a member that has gone: it may have done its part of what is under way.
  absl::Status Await(
      absl::FunctionRef<bool()> is_done, const Deadline& deadline,
      absl::FunctionRef<void()> before_sleep = [] {}) {
    return streams_.Await(is_done, deadline, backends::SocketStreams::Unsendable::kAreIgnored,
                          before_sleep);
  }
  bool is_sent(int to) const { return streams_.is_sent(to); }

  // How many bytes the kernel of any member takes that nobody reads there, the same on all members.
  size_t window() const { return window_; }

  // See backends::AwaitDelivery. Call it before Abort if the others may still take what was sent.
  void AwaitDelivery(absl::Duration timeout) const;
  // See backends::AcknowledgeNow. For when a member has left.
  void AcknowledgeNow() const;

  int rank(int node) const { return members_[node].rank; }
  const std::string& name(int node) const { return members_[node].name; }

  // The NetworkError of a connection that has ended by itself, with the rank at its other side; OK
  // if none has. For the thread whose wait has failed.
  absl::Status ended() const { return streams_.ended(); }
  // The TimeoutError of a wait, with the ranks that it waited for; OK if none has timed out.
  absl::Status late() const { return streams_.late(); }

  // Ends all waits, here and on the other members, by shutting the connections down. Thread-safe,
  // as are AwaitDelivery and AcknowledgeNow.
  void Abort();
  bool is_aborted() const { return streams_.is_aborted(); }

 private:
  static absl::Status AcceptMembers(const backends::Listener& listener,
                                    absl::Span<const Member> members, int own,
                                    const Deadline& deadline,
                                    absl::FunctionRef<absl::Status()> check, Streams& streams);

  // The window as far as this rank's kernel is concerned: a third of the buffer, as what the kernel
  // itself needs counts too.
  size_t OwnWindow() const;
  // Each member tells the others its own, and all take the least: their hosts may be set up
  // otherwise.
  absl::Status AgreeOnWindow(const Deadline& deadline, absl::FunctionRef<absl::Status()> check);

  std::vector<int> AllSockets() const;

  const std::vector<Member> members_;  // By node, as are the streams.
  backends::SocketStreams streams_;
  size_t window_;
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_
