// One end of a TLS 1.3 connection over a socket that does not block.
#ifndef SYNCLINE_CORE_TLS_SESSION_H_
#define SYNCLINE_CORE_TLS_SESSION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// OpenSSL's types, whose headers stay out of this one.
struct ssl_st;
struct ssl_ctx_st;

namespace syncline::tls {

// Whether an error is that of a Handshake in which one side does not accept what the other proves,
// and not one of a connection that has ended, for which there may be another cause. Annotate keeps
// that.
bool IsRefusal(const absl::Status& status);

// Made by a Context. Not thread-safe: reads and writes share state. Borrows the socket, which
// carries nothing else from the first call of Handshake on.
//
// Nothing here waits. The end of the stream is that of the connection: a peer says in its own
// protocol that it leaves, and whoever cuts a connection makes it look like one that was lost.
class Session {
 public:
  enum class Role { kClient, kServer };

  struct Options {
    Role role = Role::kClient;
    std::string key;  // With Mode::kSecret: 32 bytes.
    std::string
        connection;  // With certificates: 32 bytes that stand for what both ends must agree on.
    std::string description;  // Of what this side proves, for messages.
    std::string peer_name;    // That the peer's certificate must have; empty: any.
    uint64_t records_per_key = 0;
  };

  // `context` has all else. nullptr if memory is short.
  static std::unique_ptr<Session> Create(ssl_ctx_st* context, Options options);

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Goes on with the handshake. Returns whether it is complete: then the other side has accepted
  // what this one proves. Otherwise it waits for input. A NetworkError that says which side refused
  // what, or that the connection has ended.
  absl::StatusOr<bool> Handshake(int socket);

  // As sendmsg(2): returns how many of the bytes are in the kernel, encrypted; -1 with errno
  // otherwise, EAGAIN if the kernel has no room. Then the next call must begin with the same bytes.
  ssize_t Send(int socket, const iovec* pieces, size_t count);

  // As recvmsg(2), but the end of the stream is -1 with ECONNRESET, and what was changed on its way
  // -1 with EPROTO. After EAGAIN nothing is left to be read but what the socket will have.
  ssize_t Receive(int socket, const iovec* pieces, size_t count);

  // Whether a Handshake has failed because the connection ended, and not because a side refused the
  // other: another connection may do better.
  bool has_ended() const { return has_ended_; }

  // Used by Context's callbacks.
  static Session& Of(const ssl_st* ssl);
  absl::string_view key() const { return options_.key; }
  absl::string_view connection() const { return options_.connection; }
  void NoteRefused(std::string certificate) { refused_ = std::move(certificate); }

 private:
  // What OpenSSL reads and writes by.
  friend class SessionBio;

  explicit Session(Options options);

  // Whether the kernel has all of `out_`. If not, errno says why.
  bool Flush(int socket);
  // Encrypts the bytes that come after the first `skipped`, up to a bound, and returns how many.
  size_t EncryptBurst(const iovec* pieces, size_t count, size_t skipped);
  void EncryptGathered();
  void Encrypt(const void* data, size_t bytes);
  absl::Status HandshakeError(int result);
  // An error unless the client has asked for the connection that this server is there for.
  absl::Status CheckIsAskedFor() const;

  const Options options_;
  ssl_st* ssl_ = nullptr;
  int socket_ = -1;  // Of the call under way.
  // What is encrypted and not in the kernel, of which the first `out_sent_` bytes are; and how many
  // bytes of the caller's it stands for.
  std::vector<char> out_;
  size_t out_sent_ = 0, held_ = 0;
  std::vector<char> gathered_;  // Short pieces, which share a record.
  uint64_t records_ = 0;        // Encrypted with the present key.
  bool is_broken_ = false;      // No record can be made any more.
  int read_error_ = 0;          // An errno: nothing can be read any more.
  bool is_confirmed_ = false;
  bool has_ended_ = false;
  std::string refused_;  // The certificate of the other side.
};

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_SESSION_H_
