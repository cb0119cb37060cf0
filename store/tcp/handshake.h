// How the two ends of a tcp store's connection prove to each other that they know the job's secret,
// before either reads anything else from it:
//
//   client                              server
//   Hello      magic, nonce, tag     ->
//                                    <- Challenge  magic, answer, nonce, proof
//   Response   proof                 ->
//   gRPC                            <-> gRPC
//
// Tag and proofs are HMAC-SHA256 with the secret as key: of "hello" + client's nonce; of "server"
// or "client" + server's nonce + client's nonce. Each side draws a nonce for each connection, so a
// proof serves once, and the two proofs differ, so neither can be sent back. A tag can be replayed;
// it only keeps a connection from being closed in favour of another, see TCPAcceptor.
//
// All messages have fixed sizes, and a server that has no secret asks for no response.
//
// The proofs keep out whoever found the port, and keep a client from trusting whoever took it. What
// is sent afterwards is neither encrypted nor authenticated.
#ifndef SYNCLINE_STORE_TCP_HANDSHAKE_H_
#define SYNCLINE_STORE_TCP_HANDSHAKE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::tcp_store {

inline constexpr absl::string_view kHandshakeMagic = "SYNCST02";
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kHelloBytes = 8 + kNonceBytes + kProofBytes;
inline constexpr size_t kChallengeBytes = 8 + 1 + kNonceBytes + kProofBytes;
inline constexpr size_t kResponseBytes = kProofBytes;

// A client's part in one connection.
class ClientHandshake {
 public:
  explicit ClientHandshake(std::string secret);  // Empty: the job has none.

  std::string Hello() const;

  // The response to send, which is empty if the server asks for none. NetworkError if the server
  // refuses this client or is not to be trusted.
  absl::StatusOr<std::string> Respond(absl::string_view challenge) const;

 private:
  const std::string secret_;
  const std::string nonce_;
};

// A server's part in one connection.
class ServerHandshake {
 public:
  enum class Answer : char {
    kRespond = 'R',  // The client's response decides.
    kOpen = 'O',     // This server has no secret; the client is in.
    kRefused = 'X',  // The client does not know the secret.
  };
  struct Challenge {
    Answer answer;
    std::string message;
  };

  // Whether `bytes` can be the beginning of a hello.
  static bool CanBeHello(absl::string_view bytes);

  // What to answer to `hello`, of kHelloBytes, where the job's secret is `secret`.
  Challenge AnswerHello(absl::string_view secret, absl::string_view hello);

  // Whether `response`, of kResponseBytes, proves that the client knows the secret.
  bool Accepts(absl::string_view response) const;

 private:
  std::string expected_;
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_HANDSHAKE_H_
