#include "core/base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdio>
#include <cstdlib>

namespace syncline::base {
namespace {

void CheckCrypto(bool succeeded, const char* what) {
  if (succeeded) return;
  std::fprintf(stderr, "syncline: OpenSSL failed: %s\n", what);
  std::abort();
}

// Threads, such as those of stores, may still use OpenSSL when the process exits, so it must not
// free what they use.
const bool kNeverCleansUp = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;

unsigned char* Bytes(std::string& s) { return reinterpret_cast<unsigned char*>(&s[0]); }

}  // namespace

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  CheckCrypto(RAND_bytes(Bytes(bytes), static_cast<int>(count)) == 1, "RAND_bytes");
  return bytes;
}

std::string HmacSha256(absl::string_view secret, absl::string_view message) {
  std::string mac(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  CheckCrypto(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                   Bytes(mac), &size) != nullptr,
              "HMAC");
  mac.resize(size);
  return mac;
}

bool SameBytes(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace syncline::base
