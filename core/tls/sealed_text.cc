#include "core/tls/sealed_text.h"

#include <openssl/evp.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/hmac.h"

namespace syncline::tls {
namespace {

constexpr size_t kNonceBytes = 12, kTagBytes = 16;
static_assert(kSealBytes == kNonceBytes + kTagBytes);

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(&text[0]); }

std::string KeyOf(absl::string_view secret) {
  return base::HmacSha256(secret, "syncline sealed texts");
}

}  // namespace

std::string SealText(absl::string_view secret, absl::string_view text) {
  const std::string key = KeyOf(secret), nonce = base::RandomBytes(kNonceBytes);
  std::string out(text.size(), '\0'), tag(kTagBytes, '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int written = 0;
  const bool is_sealed =
      cipher != nullptr &&
      EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, Bytes(key), Bytes(nonce)) == 1 &&
      EVP_EncryptUpdate(cipher.get(), Bytes(out), &written, Bytes(text),
                        static_cast<int>(text.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), Bytes(tag), &written) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, Bytes(tag)) == 1;
  return is_sealed ? absl::StrCat(nonce, out, tag) : "";
}

std::optional<std::string> OpenSealedText(absl::string_view secret, absl::string_view sealed) {
  if (sealed.size() < kSealBytes) return std::nullopt;
  const std::string key = KeyOf(secret);
  const absl::string_view nonce = sealed.substr(0, kNonceBytes);
  const absl::string_view text = sealed.substr(kNonceBytes, sealed.size() - kSealBytes);
  std::string tag(sealed.substr(sealed.size() - kTagBytes));
  std::string out(text.size() + kTagBytes, '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int written = 0, rest = 0;
  if (cipher == nullptr ||
      EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, Bytes(key), Bytes(nonce)) != 1 ||
      EVP_DecryptUpdate(cipher.get(), Bytes(out), &written, Bytes(text),
                        static_cast<int>(text.size())) != 1 ||
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, Bytes(tag)) != 1 ||
      EVP_DecryptFinal_ex(cipher.get(), Bytes(out) + written, &rest) != 1) {
    return std::nullopt;
  }
  out.resize(static_cast<size_t>(written + rest));
  return out;
}

}  // namespace syncline::tls
