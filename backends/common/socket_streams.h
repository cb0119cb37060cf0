// Streams of bytes to and from each peer, over sockets that the calling thread serves itself.
#ifndef SYNCLINE_BACKENDS_COMMON_SOCKET_STREAMS_H_
#define SYNCLINE_BACKENDS_COMMON_SOCKET_STREAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backends/common/byte_queue.h"
#include "backends/common/socket_spin.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::backends {

// To and from each peer, bytes flow in the order of the calls of Send and Receive; there are no
// message boundaries. A peer may have several connections, as many on both sides. Then stripes of
// kStripeBytes go over one after the other, so a receiver knows where each byte comes, and a short
// message mostly takes one connection alone. They move only inside of the waits and of
// MakeProgress, then in both directions with all peers at once, so no order of calls can make two
// ranks wait for each other's buffers.
//
// A connection that nobody reads or writes is not looked at, so its end shows only in the next call
// that uses it.
//
// Used by one thread at a time; only Abort, has_ended and the sockets may be used beside it. Owns
// the sockets; borrows the memory of a Send or Receive until its bytes have gone or come. After an
// error the object is of no more use.
//
//   streams.Send(to, request, sizeof(request));
//   streams.Receive(from, reply, sizeof(reply));
//   SYNCLINE_RETURN_IF_ERROR(streams.AwaitAll(deadline));
class SocketStreams {
 public:
  static constexpr uint64_t kStripeBytes = 256 << 10;

  struct Peer {
    int rank;
    std::string name;  // For messages.
  };
  using PeerOf = std::function<Peer(int peer)>;
  // Called when bytes have come from `peer`; an error ends the wait. Without it, a system call that
  // receives few bytes also takes those that have come behind them, for the next Receive.
  using OnReceived = std::function<absl::Status(int peer)>;

  // `streams` has those to each peer, and none for this rank itself. `abort_event` is an eventfd,
  // or invalid: then Abort ends no poll(2), and the caller shuts the sockets down.
  SocketStreams(std::vector<std::vector<tls::Stream>> streams, PeerOf peer_of,
                base::UniqueFd abort_event, OnReceived on_received = nullptr);

  // Appends memory to what goes to a peer, or comes from it. Moves nothing yet.
  void Send(int to, const void* data, size_t bytes);
  void Receive(int from, void* data, size_t bytes);

  // The bytes of all calls of Send to a peer, and of Receive from it; and how many of them have
  // moved, before the first that has not.
  uint64_t bytes_to_send(int to) const { return links_[to].to_send; }
  uint64_t bytes_to_receive(int from) const { return links_[from].to_receive; }
  uint64_t bytes_sent(int to) const { return MovedOf(links_[to], &Lane::out, links_[to].to_send); }
  uint64_t bytes_received(int from) const {
    return MovedOf(links_[from], &Lane::in, links_[from].to_receive);
  }

  // Whether all bytes for a peer have gone, or none can go any more, as the peer has gone.
  bool is_sent(int to) const;

  // What a wait does about bytes that can no longer go to a peer, as it has gone, where no more are
  // to come from it.
  enum class Unsendable { kFail, kAreIgnored };

  // Waits until `is_done`, which is asked whenever bytes have moved; AwaitAll, until all have. A
  // TimeoutError at the deadline; a NetworkError when a connection ends from which bytes are to
  // come, or with unsendable bytes that are not ignored, or when the streams are aborted; the
  // interruption of this thread; the error of OnReceived. `before_sleep` may send more.
  absl::Status Await(
      absl::FunctionRef<bool()> is_done, const Deadline& deadline,
      Unsendable unsendable = Unsendable::kFail, absl::FunctionRef<void()> before_sleep = [] {});
  absl::Status AwaitAll(const Deadline& deadline);

  // Moves the bytes that move without a wait. Errors are those of Await.
  absl::Status MakeProgress();
  // Of these, moves those that are to be sent, without a look at what comes, which takes a system
  // call. An error is for the next Await.
  void SendNow();

  // Ends all waits, now and later, of this rank.
  void Abort();
  bool is_aborted() const { return is_aborted_.load(); }

  // Whether a connection of `peer` was found to have ended.
  bool has_ended(int peer) const { return links_[peer].has_ended.load(); }

  // The error of the connection that has ended, with the rank at its other side; OK if none has.
  absl::Status ended() const { return ended_; }

  // The TimeoutError of a wait that has ended at its deadline, or that would have if it had not
  // been aborted, with the ranks whose bytes have not moved; OK if none has.
  absl::Status late() const { return late_; }

  int size() const { return static_cast<int>(links_.size()); }
  // Of all connections to a peer; none for this rank.
  std::vector<int> sockets(int peer) const;
  // Closes all sockets. Requires that no operation is under way.
  void Close();

 private:
  // One connection.
  struct Lane {
    tls::Stream stream;
    ByteQueue out = {}, in = {};
    // What has come beyond `in`, which is empty then: from ahead_begin to ahead_end.
    std::vector<std::byte> ahead = {};
    size_t ahead_begin = 0, ahead_end = 0;
    // False if there was nothing to receive at the last look.
    bool may_have_come = true;
    // Once nothing can be sent any more: why, and since when, or since when this rank waits.
    int out_error = 0;
    absl::Time out_ended = absl::InfiniteFuture();
  };
  // All those to a peer.
  struct Link {
    std::vector<Lane> lanes;
    uint64_t to_send = 0, to_receive = 0;
    std::atomic<bool> has_ended{false};

    bool is_receiving() const;
  };

  // Gives `bytes` to the queues of the lanes, after `given` that these have had.
  static void Add(Link& link, ByteQueue Lane::* queue, uint64_t& given, void* data, size_t bytes);
  static uint64_t MovedOf(const Link& link, ByteQueue Lane::* queue, uint64_t given) {
    if (link.lanes.size() == 1) return (link.lanes[0].*queue).moved();
    return MovedOfSeveral(link, queue, given);
  }
  static uint64_t MovedOfSeveral(const Link& link, ByteQueue Lane::* queue, uint64_t given);

  // Finds out which connections have something to receive, by one system call for all.
  void LookForWhatHasCome();
  // Whether bytes have moved.
  absl::StatusOr<bool> MoveAll(Unsendable unsendable);
  absl::StatusOr<bool> Move(int peer, Lane& lane, Unsendable unsendable);
  bool Send(Lane& lane);
  Moved Receive(Lane& lane);
  absl::Status Ended(int peer);
  absl::Status Late(const Deadline& deadline);
  void Poll(absl::Duration limit) const;

  const PeerOf peer_of_;
  const OnReceived on_received_;
  std::vector<Link> links_;  // By peer. As many from the start: a Link cannot be moved.
  const base::UniqueFd abort_event_;
  bool has_out_error_ = false;  // Of any lane.
  SocketSpin spin_;
  absl::Status ended_, late_;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_SOCKET_STREAMS_H_
