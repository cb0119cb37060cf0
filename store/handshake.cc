#include "store/handshake.h"

#include "absl/strings/str_cat.h"
#include "core/hmac.h"

namespace syncline {
std::string NewNonce() { return RandomBytes(kNonceBytes); }

std::string Proof(absl::string_view secret, Party party, absl::string_view server_nonce,
                  absl::string_view client_nonce) {
  return HmacSha256(secret, absl::StrCat(party == Party::kClient ? "client" : "server",
                                         server_nonce, client_nonce));
}

bool SameProof(absl::string_view a, absl::string_view b) { return SameBytes(a, b); }

}  // namespace syncline
