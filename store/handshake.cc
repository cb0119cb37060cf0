#include "store/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

void CheckCrypto(const void* or_null, const char* what) {
  if (or_null != nullptr) return;
  std::fprintf(stderr, "syncline: OpenSSL failed: %s\n", what);
  std::abort();
}

unsigned char* Bytes(std::string& s) { return reinterpret_cast<unsigned char*>(&s[0]); }

}  // namespace

std::string NewNonce() {
  std::string nonce(kNonceBytes, '\0');
  CheckCrypto(RAND_bytes(Bytes(nonce), kNonceBytes) == 1 ? &nonce : nullptr, "RAND_bytes");
  return nonce;
}

std::string Proof(absl::string_view secret, Party party, absl::string_view server_nonce,
                  absl::string_view client_nonce) {
  std::string text =
      absl::StrCat(party == Party::kClient ? "client" : "server", server_nonce, client_nonce);
  std::string proof(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  CheckCrypto(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), Bytes(text),
                   text.size(), Bytes(proof), &size),
              "HMAC");
  proof.resize(size);
  return proof;
}

bool SameProof(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace syncline
