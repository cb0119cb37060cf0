// Accepts the connections of a tcp store's server, and passes on those of clients that know the
// job's secret.
#ifndef SYNCLINE_STORE_TCP_TCP_ACCEPTOR_H_
#define SYNCLINE_STORE_TCP_TCP_ACCEPTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/tls/context.h"
#include "core/tls/session.h"
#include "core/tls/stream.h"
#include "store/common/listen_address.h"
#include "store/tcp/handshake.h"
#include "syncline/deadline.h"

namespace syncline::tcp_store {

// Runs the server's part of the handshake (handshake.h), TLS included, for all connections on one
// thread, with a few hundred bytes for each that has not proved the secret. Nothing else is read
// from a connection before the client has proved that it knows the secret, so whatever serves the
// connections afterwards is out of reach for strangers.
//
// What strangers can hold is bounded:
//   * At most kMaxStrangers connections have not said a valid hello. When one more comes, the
//     oldest is closed. So a client gets in that says hello before kMaxStrangers others connect.
//   * At most kMaxGreeted have said a valid hello and are not yet admitted; again the oldest is
//     closed. A hello that was overheard and is replayed counts here. Without a secret anyone's
//     does, and may begin TLS, so then they are kMaxGreetedWithoutSecret.
//   * Each is closed when its time to prove is over.
//   * One that says nothing is the kernel's for its first second, not this class's.
//
// Refusals are logged, a line every few seconds at most, and never in the way of the thread.
class TCPAcceptor {
 public:
  static constexpr size_t kMaxStrangers = 64;
  static constexpr size_t kMaxGreeted = 1024;
  static constexpr size_t kMaxGreetedWithoutSecret = 128;

  struct Options {
    std::string secret;                 // The job's. Empty: a hello suffices.
    std::shared_ptr<tls::Context> tls;  // Encrypts connections; null: they are not.
    absl::Duration time_to_prove;
    std::string name;  // Of the store, for the log.
  };

  // Takes a connection, which is non-blocking. Called on the acceptor's thread.
  using ConnectionHandler = std::function<void(tls::Stream connection)>;

  static absl::StatusOr<std::unique_ptr<TCPAcceptor>> Start(store::Listener listener,
                                                            Options options,
                                                            ConnectionHandler handler);
  ~TCPAcceptor();  // As Shutdown.

  // Connections that have not proved that they know the secret.
  int64_t NumUnproved() const { return num_unproved_.load(std::memory_order_relaxed); }

  // Closes the listener and all connections that are not admitted. After it, no call of the handler
  // is or gets under way.
  void Shutdown();

 private:
  // A connection before its client's proof.
  struct Unproved {
    base::UniqueFd socket;
    Deadline deadline;
    ServerHandshake handshake;
    std::unique_ptr<tls::Session> session = nullptr;  // Once the secret is proved.
    bool watched = false;                             // By epoll.
    bool greeted = false;                             // It has said a valid hello.
    size_t received = 0;                              // Of the message that is due.
    char message[kHelloBytes] = {};
  };
  // By number, so the first is the oldest.
  using Connections = std::map<uint64_t, Unproved>;

  enum class Step { kWait, kAdmit, kClose };

  TCPAcceptor(store::Listener listener, Options options, ConnectionHandler handler);

  absl::Status Open();
  void Run();
  int PollTimeout() const;  // In milliseconds.

  bool AcceptFrom(int listener);  // Whether there are no more for now.
  void Add(base::UniqueFd socket);
  void HearNewcomers();
  void Advance(Connections& from, Connections::iterator at);
  tls::Stream Remove(Connections& from, Connections::iterator at);
  Step Receive(Unproved& connection);
  Step ExamineHello(Unproved& connection);
  Step ExamineResponse(Unproved& connection);
  Step BeginEncryption(Unproved& connection);
  Step Encrypt(Unproved& connection);
  tls::Mode mode() const;

  void CloseOldest(Connections& connections, absl::string_view why);
  void CloseExpired(Connections& connections);
  void PauseAccepting(const absl::Status& why);
  void WatchListeners(bool watch);

  void LogRefusal(const base::UniqueFd& socket, absl::string_view why);
  void LogSometimes(absl::string_view message);

  const Options options_;
  const ConnectionHandler handler_;
  store::Listener listener_;
  base::UniqueFd epoll_;
  base::UniqueFd stop_;  // An eventfd.
  std::thread thread_;
  std::atomic<int64_t> num_unproved_{0};

  // Of the thread.
  Connections strangers_;
  Connections greeted_;
  uint64_t last_number_ = 0;
  uint64_t last_heard_ = 0;         // Of those up to it, epoll reports what they say.
  std::optional<Deadline> resume_;  // When to accept again.
  std::optional<Deadline> log_again_;
  int64_t num_unlogged_ = 0;
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_ACCEPTOR_H_
