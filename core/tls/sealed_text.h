// Short texts that only those who share a key can read: for datagrams, which have no connection.
#ifndef SYNCLINE_CORE_TLS_SEALED_TEXT_H_
#define SYNCLINE_CORE_TLS_SEALED_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace syncline::tls {

// So many bytes longer than the text is what it is sealed as.
inline constexpr size_t kSealBytes = 12 + 16;

// Encrypts `text` by AES-256-GCM (NIST SP 800-38D) with a key that follows from `secret` and a
// random nonce, which makes it fit for 2^32 texts. What was sent once can be sent again by whoever
// overhears it. Empty if memory is short.
std::string SealText(absl::string_view secret, absl::string_view text);

// The text of which `sealed` was made; nothing if that was another secret's, or is not whole.
std::optional<std::string> OpenSealedText(absl::string_view secret, absl::string_view sealed);

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_SEALED_TEXT_H_
