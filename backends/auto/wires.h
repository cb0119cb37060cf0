// The TCP connections of one lane: each of its ranks with every other.
#ifndef SYNCLINE_BACKENDS_AUTO_WIRES_H_
#define SYNCLINE_BACKENDS_AUTO_WIRES_H_

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
#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace syncline {

// Where one rank waits for others to connect. A peer must know the secret, which only the ranks of
// the job can read in their store. The secret keeps strangers from taking a rank's place; it does
// not keep those who can read or change packets on the network from reading or changing the data.
class WireDoor {
 public:
  static absl::StatusOr<std::unique_ptr<WireDoor>> Open(const std::string& address);

  // Its address, port and secret, in one line, for those who connect.
  std::string ticket() const;

  int socket() const { return socket_.get(); }
  absl::string_view secret() const { return secret_; }

 private:
  WireDoor(UniqueFd socket, std::string address, int port);

  const UniqueFd socket_;
  const std::string address_;
  const int port_;
  const std::string secret_;
};

// The rank that calls moves the bytes itself, without a thread between it and the kernel: what
// makes short messages fast, and long ones cost less of the cores than Gloo's.
//
// Members are known by their places on the lane. To and from each, bytes flow in the order in which
// they were given, and move in the waits below, in both directions with all members at once. After
// an error nothing is of use any more. Not thread-safe, but for Abort.
class Wires {
 public:
  struct Member {
    std::string name;    // For messages.
    std::string ticket;  // Of its door.
  };

  // Collective: connects all `members`, of which this rank is members[place], with its `door`.
  static absl::StatusOr<std::unique_ptr<Wires>> Connect(const WireDoor& door,
                                                        absl::Span<const Member> members, int place,
                                                        const Deadline& deadline);

  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  // What goes to, and what comes from, a member next. The memory must stay until it has.
  void Send(int to, const void* data, size_t bytes);
  void Receive(int from, void* data, size_t bytes);

  // How much has been given so far, in all.
  uint64_t to_send(int to) const { return links_[to].out.given; }
  uint64_t to_receive(int from) const { return links_[from].in.given; }

  // Wait until of what was given so much has gone, or come; or all, with all members. A
  // NetworkError when a connection ends, or is aborted.
  absl::Status AwaitSent(int to, uint64_t bytes, const Deadline& deadline);
  absl::Status AwaitReceived(int from, uint64_t bytes, const Deadline& deadline);
  absl::Status AwaitAll(const Deadline& deadline);

  // Moves what moves without a wait.
  absl::Status Progress();

  // Ends all waits, and the connections.
  void Abort();

 private:
  // Memory, in order.
  struct Queue {
    void Add(void* data, size_t bytes);
    bool is_empty() const { return first == parts.size(); }
    // The next of them, up to a burst, in `out`; returns how many.
    size_t Next(absl::Span<iovec> out) const;
    void Take(size_t bytes);

    std::vector<iovec> parts;
    size_t first = 0;  // Before it, all is done.
    uint64_t given = 0, done = 0;
  };
  struct Link {
    UniqueFd socket;
    std::string name;
    Queue out, in;
  };

  explicit Wires(size_t size) : links_(size) {}

  // Returns whether anything has moved.
  absl::StatusOr<bool> Move();
  absl::StatusOr<bool> Push(Link& link);
  absl::StatusOr<bool> Pull(Link& link);
  absl::Status Pump(absl::FunctionRef<bool()> is_done, const Deadline& deadline);
  void AwaitReady(absl::Duration limit) const;
  absl::Status Closed(const Link& link, absl::string_view why) const;

  std::vector<Link> links_;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_WIRES_H_
