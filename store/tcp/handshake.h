// How the two ends of a tcp store's connection prove to each other that they know the job's secret,
// before either reads anything else from it:
//
//   client                              server
//   Hello      magic, mode, nonce, tag ->
//                                    <- Challenge  magic, answer, mode, nonce, proof
//   Response   proof                 ->
//   TLS, if that is the mode        <-> TLS
//   gRPC                            <-> gRPC
//
// The mode is a tls::Mode; it must be the same at both ends. Tag and proofs are HMAC-SHA256 with
// the secret as key: of "hello" + mode + client's nonce; of "server" or "client" + mode + server's
// nonce
// + client's nonce. Each side draws a nonce for each connection, so a
// proof serves once, and the two proofs differ, so neither can be sent back. A tag can be replayed;
// it only keeps a connection from being closed in favour of another, see TCPAcceptor.
//
// All messages have fixed sizes, and a server that has no secret asks for no response.
//
// The proofs keep out whoever found the port, and keep a client from trusting whoever took it. What
// is sent afterwards is neither encrypted nor authenticated without TLS, which proves again who the
// two are, so that nobody between them gains anything by passing these messages on.
#ifndef SYNCLINE_STORE_TCP_HANDSHAKE_H_
#define SYNCLINE_STORE_TCP_HANDSHAKE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tls/settings.h"

namespace syncline::tcp_store {

inline constexpr absl::string_view kHandshakeMagic = "SYNCST03";
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kHelloBytes = 8 + 1 + kNonceBytes + kProofBytes;
inline constexpr size_t kChallengeBytes = 8 + 1 + 1 + kNonceBytes + kProofBytes;
inline constexpr size_t kResponseBytes = kProofBytes;

// What TLS keys follow from, beside the secret.
inline constexpr absl::string_view kTlsPurpose = "store";

// A client's part in one connection.
class ClientHandshake {
 public:
  // An empty secret: the job has none.
  explicit ClientHandshake(std::string secret, tls::Mode mode = tls::Mode::kOff);

  std::string Hello() const;

  // The response to send, which is empty if the server asks for none. NetworkError if the server
  // refuses this client or is not to be trusted.
  absl::StatusOr<std::string> Respond(absl::string_view challenge) const;

 private:
  const std::string secret_;
  const tls::Mode mode_;
  const std::string nonce_;
};

// A server's part in one connection.
class ServerHandshake {
 public:
  enum class Answer : char {
    kRespond = 'R',    // The client's response decides.
    kOpen = 'O',       // This server has no secret; the client is in.
    kRefused = 'X',    // The client does not know the secret.
    kOtherMode = 'T',  // The client does, but its mode is another.
  };
  struct Challenge {
    Answer answer;
    std::string message;
  };

  // Whether `bytes` can be the beginning of a hello.
  static bool CanBeHello(absl::string_view bytes);

  // What to answer to `hello`, of kHelloBytes, where the job's secret is `secret`.
  Challenge AnswerHello(absl::string_view secret, absl::string_view hello,
                        tls::Mode mode = tls::Mode::kOff);

  // Whether `response`, of kResponseBytes, proves that the client knows the secret.
  bool Accepts(absl::string_view response) const;

 private:
  std::string expected_;
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_HANDSHAKE_H_
