// The TCP connections of one rank on its rail: one to the rank of every other node.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/hierarchical/listener.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"

namespace syncline::hierarchical {

// The calling thread moves the bytes itself: Gloo has a thread between the caller and the kernel,
// and each of its messages waits for a word from the receiver, which takes ten times as long for a
// few bytes.
//
// Members of a rail are numbered by their nodes. To and from each member, bytes flow in the order
// of the calls of Send and Receive; there are no message boundaries. They move only inside of the
// waits and of MakeProgress, then in both directions with all members at once, so no order of calls
// can make two ranks wait for each other's buffers.
//
// Not thread-safe, except Abort. Owns the sockets; borrows the memory of a Send or Receive until
// its bytes have gone or come. After an error the object is of no more use.
//
//   sockets->Send(to, request, sizeof(request));
//   sockets->Receive(from, reply, sizeof(reply));
//   SYNCLINE_RETURN_IF_ERROR(sockets->AwaitAll(deadline));
class RailSockets {
 public:
  struct Member {
    std::string name;      // For messages: "rank 3 (host b, pid 81)".
    std::string endpoint;  // Of its Listener.
  };

  // Collective: connects all `members`, of which this rank is members[own], with its `listener`. A
  // TimeoutError names the members that did not come; a NetworkError, the member that cannot be
  // reached.
  static absl::StatusOr<std::unique_ptr<RailSockets>> Connect(const Listener& listener,
                                                              absl::Span<const Member> members,
                                                              int own, const Deadline& deadline);

  RailSockets(const RailSockets&) = delete;
  RailSockets& operator=(const RailSockets&) = delete;

  // Appends memory to what goes to a member, or comes from it. Moves nothing yet.
  void Send(int to, const void* data, size_t bytes);
  void Receive(int from, void* data, size_t bytes);

  // The bytes of all calls of Send to a member, and of Receive from it, since it connected.
  uint64_t bytes_to_send(int to) const { return links_[to].out.given; }
  uint64_t bytes_to_receive(int from) const { return links_[from].in.given; }

  // Wait until so many bytes, counted as above, have gone or come; AwaitAll, until all have, with
  // all members. A TimeoutError at the deadline; a NetworkError when a connection ends or the
  // sockets are aborted; the interruption of this thread.
  absl::Status AwaitSent(int to, uint64_t bytes, const Deadline& deadline);
  absl::Status AwaitReceived(int from, uint64_t bytes, const Deadline& deadline);
  absl::Status AwaitAll(const Deadline& deadline);

  // Moves the bytes that move without a wait. A NetworkError when a connection ends.
  absl::Status MakeProgress();

  // Ends all waits, here and on the other members, by shutting the connections down. Thread-safe.
  void Abort();

 private:
  // Memory to be sent or filled, in order.
  struct Queue {
    void Add(void* data, size_t bytes);
    bool is_empty() const { return first == pieces.size(); }
    // Writes the next pieces, at most kSocketBurstBytes, to `out`; returns how many.
    size_t Next(absl::Span<iovec> out) const;
    // Removes the first `bytes`, which have been moved.
    void Consume(size_t bytes);

    std::vector<iovec> pieces;
    size_t first = 0;  // The pieces before this one have been moved.
    uint64_t given = 0, done = 0;
  };
  struct Link {
    base::UniqueFd socket;  // None for this rank itself.
    std::string name;
    Queue out, in;
  };

  explicit RailSockets(size_t size) : links_(size) {}

  absl::Status AcceptMembers(const Listener& listener, int own, const Deadline& deadline);

  // Each returns whether bytes have moved.
  absl::StatusOr<bool> MoveAll();
  absl::StatusOr<bool> SendSome(Link& link);
  absl::StatusOr<bool> ReceiveSome(Link& link);

  absl::Status Await(absl::FunctionRef<bool()> is_done, const Deadline& deadline);
  void Poll(absl::Duration limit) const;
  absl::Status ConnectionEnded(const Link& link, absl::string_view why) const;

  std::vector<Link> links_;  // By node.
  std::atomic<bool> is_aborted_{false};
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_SOCKETS_H_
