// Gives gRPC the plain end of connections that are encrypted on the network.
#ifndef SYNCLINE_STORE_TCP_TLS_RELAY_H_
#define SYNCLINE_STORE_TCP_TLS_RELAY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"

namespace syncline::tcp_store {

// gRPC encrypts only what it has connected or accepted itself, and connections come here with their
// handshake done (TCPAcceptor, ConnectToServer). So one thread carries the bytes of all of them
// between their sockets and pairs of sockets within the process.
//
// Each direction of a connection has one buffer, so who does not read is waited for, as by the
// kernel. When one end of a connection closes, what it has sent still reaches the other, which is
// closed then; unless that does not take it for kLinger.
//
// Thread-safe. It has no thread in a fork()ed child, where it must not be destroyed.
class TLSRelay {
 public:
  // NetworkError if the process lacks descriptors; BackendError if it lacks threads.
  static constexpr absl::Duration kLinger = absl::Seconds(10);

  static absl::StatusOr<std::unique_ptr<TLSRelay>> Start();

  // Waits, for a second at most, until what the other ends sent before they were closed is on its
  // way.
  ~TLSRelay();

  // Returns the plain end of `stream`. NetworkError if the process lacks descriptors.
  absl::StatusOr<base::UniqueFd> Add(tls::Stream stream);

 private:
  // Bytes on their way in one direction.
  struct Direction {
    std::vector<char> buffer;
    size_t begin = 0, end = 0;
    bool has_ended = false;  // Nothing more comes.
    bool is_broken = false;  // What comes can go nowhere.

    bool is_empty() const { return begin == end; }
  };
  struct Connection {
    tls::Stream network;
    base::UniqueFd local;
    Direction in, out;            // From and to the network.
    std::optional<Deadline> end;  // Once one end has closed.
  };
  enum class Pace { kWaits, kHasMore, kOver };

  TLSRelay() = default;

  absl::Status Open();
  void Run();
  // Moves what can be moved without a wait, within bounds, so that others get their turn.
  static Pace Move(Connection& connection);
  static void End(const Connection& connection);
  static bool MoveIn(Connection& connection);
  static bool MoveOut(Connection& connection);

  base::UniqueFd epoll_, wake_;
  std::thread thread_;
  absl::Mutex mutex_;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // Only Run erases any, and looks at their contents without the lock.
  std::map<uint64_t, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TLS_RELAY_H_
