// How the two sides of a new connection between ranks prove to each other that they know a secret,
// which only the ranks of the job can read in their store, without sending it: the messages, and
// what each side makes of the other's. Nothing here reads or writes a socket.
#ifndef SYNCLINE_BACKENDS_COMMON_RANK_HANDSHAKE_H_
#define SYNCLINE_BACKENDS_COMMON_RANK_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncline::backends {

inline constexpr size_t kHelloSecretSize = 32;  // Characters.

// A new random secret of hexadecimal digits.
std::string NewHelloSecret();

// The purpose of the TLS session that follows the messages below, of the caller with this rank: see
// tls::Context. So the session cannot stand for that of another connection.
std::string TlsPurpose(absl::string_view secret, int rank);

// What the two sides of a new connection send, and nothing else before. `proof` is HmacSha256 of
// who proves, both nonces and the caller's rank, under the secret; so what somebody has recorded is
// of no use on another connection, nor sent back to who made it. `tag` is that of the caller's
// nonce and rank alone. It can be repeated, and so only keeps a connection from being dropped for
// those of strangers.
//
//   caller -> listener   HelloMessage
//   listener -> caller   ChallengeMessage
//   caller -> listener   ProofMessage
//
// If connections are encrypted, TLS follows at once.
struct HelloMessage {
  uint32_t magic;
  int32_t rank;
  char nonce[16];
  char tag[32];
};
struct ChallengeMessage {
  char nonce[16];
  char proof[32];
};
struct ProofMessage {
  char proof[32];
};

// The caller's part in one connection.
class CallerHandshake {
 public:
  // Requires secret.size() == kHelloSecretSize.
  CallerHandshake(absl::string_view secret, int rank);

  const HelloMessage& hello() const { return hello_; }

  // What to answer. A NetworkError if the listener does not know the secret.
  absl::StatusOr<ProofMessage> Answer(const ChallengeMessage& challenge) const;

 private:
  std::string secret_;
  HelloMessage hello_;
};

// The listener's part in one connection.
class ListenerHandshake {
 public:
  enum class Step {
    kIncomplete,  // More has to come: into room().
    kChallenge,   // challenge() is to be sent; then as kIncomplete.
    kProved,      // The caller knows the secret.
    kRefused,     // It does not.
  };

  // Where the next bytes of the connection go: what is missing of the message that is due.
  absl::Span<char> room();

  // The first `count` bytes of room() have come. Requires that no earlier result is kProved or
  // kRefused.
  Step Receive(size_t count, absl::string_view secret);

  const ChallengeMessage& challenge() const { return challenge_; }
  bool has_begun() const { return has_hello_ || received_ > 0; }  // Something has come.
  bool has_greeted() const { return has_greeted_; }               // The hello had the right tag.
  int rank() const { return hello_.rank; }  // What the caller sent; not checked.

 private:
  HelloMessage hello_ = {};
  ChallengeMessage challenge_ = {};
  ProofMessage proof_ = {};
  bool has_hello_ = false;
  bool has_greeted_ = false;
  size_t received_ = 0;  // Bytes of the message that is due.
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_RANK_HANDSHAKE_H_
