// What OpenSSL's errors mean, in words.
#ifndef SYNCLINE_CORE_TLS_ERRORS_H_
#define SYNCLINE_CORE_TLS_ERRORS_H_

#include <openssl/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace syncline::tls {

// "'CN = worker' (valid from Nov 25 14:00:00 2026 GMT until ...)"; empty for a nullptr.
std::string DescribeCertificate(const X509* certificate);

// Of SSL_get_verify_result: why a certificate is not accepted, by whoever asks for `peer_name`.
std::string DescribeVerdict(long verdict, absl::string_view peer_name);

// Of ERR_peek_error, after a handshake has failed where this process proved `own`: "the job's
// secret" (`is_secret`), or "the certificate in FILE".
std::string DescribeHandshakeError(unsigned long error, absl::string_view own, bool is_secret);

// Where a client does not ask for the connection that the server is there for.
inline constexpr absl::string_view kOtherConnection =
    "the two sides do not mean the same connection: somebody on the way may have exchanged two";

// The errors in OpenSSL's queue of this thread, which is empty then: "no such file; bad base64".
std::string TakeErrors();

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_ERRORS_H_
