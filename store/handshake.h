// How the two ends of a connection prove to each other that they know the job's secret.
#ifndef SYNCLINE_STORE_HANDSHAKE_H_
#define SYNCLINE_STORE_HANDSHAKE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace syncline {

enum class Party { kClient, kServer };

// The proof keeps out whoever found the port, and keeps a client from trusting whoever took it.
// What is sent afterwards is neither encrypted nor authenticated.
inline constexpr size_t kNonceBytes = 32;

// kNonceBytes random bytes.
std::string NewNonce();

// HMAC-SHA256(secret, party + server_nonce + client_nonce). Each side contributes a nonce, so no
// proof serves twice; the two parties' proofs differ, so none can be sent back.
std::string Proof(absl::string_view secret, Party party, absl::string_view server_nonce,
                  absl::string_view client_nonce);

// Takes the same time wherever they differ.
bool SameProof(absl::string_view a, absl::string_view b);

}  // namespace syncline

#endif  // SYNCLINE_STORE_HANDSHAKE_H_
