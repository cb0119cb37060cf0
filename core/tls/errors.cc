#include "core/tls/errors.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline::tls {
namespace {

// What an alert of the other side says of what this side has proved.
absl::string_view MeaningOfAlert(int reason) {
  switch (reason) {
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it has expired";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it was revoked";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "no authority that the other side trusts (SYNCLINE_TLS_CA) has signed it";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return "its name is not that which the other side asks for (SYNCLINE_TLS_PEER_NAME), or it "
             "is "
             "not valid yet";
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return "it is not for this use";
    default:
      return "";
  }
}

}  // namespace

std::string DescribeCertificate(const X509* certificate) {
  if (certificate == nullptr) return "";
  BIO* const text = BIO_new(BIO_s_mem());
  if (text == nullptr) return "";
  const auto free_text = absl::MakeCleanup([text] { BIO_free(text); });
  BIO_puts(text, "'");
  // Escapes what is not printable, so that a stranger's certificate writes no lines of its own.
  X509_NAME_print_ex(text, X509_get_subject_name(certificate), 0,
                     XN_FLAG_ONELINE & ~ASN1_STRFLGS_UTF8_CONVERT);
  BIO_puts(text, "' (valid from ");
  ASN1_TIME_print(text, X509_get0_notBefore(certificate));
  BIO_puts(text, " until ");
  ASN1_TIME_print(text, X509_get0_notAfter(certificate));
  BIO_puts(text, ")");
  const char* data = nullptr;
  const long size = BIO_get_mem_data(text, &data);
  constexpr long kLongest = 512;
  return std::string(data, static_cast<size_t>(size < kLongest ? size : kLongest));
}

std::string DescribeVerdict(long verdict, absl::string_view peer_name) {
  std::string text = X509_verify_cert_error_string(verdict);
  switch (verdict) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      absl::StrAppend(&text, ": it is not for '", peer_name, "'; see SYNCLINE_TLS_PEER_NAME");
      break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      absl::StrAppend(&text, ": no authority of SYNCLINE_TLS_CA has signed it");
      break;
    default:
      break;
  }
  return text;
}

std::string DescribeHandshakeError(unsigned long error, absl::string_view own, bool is_secret) {
  const int reason = ERR_GET_REASON(error);
  if (ERR_GET_LIB(error) == ERR_LIB_SSL) {
    const absl::string_view alert = MeaningOfAlert(reason);
    if (!alert.empty()) return absl::StrCat("the other side does not accept ", own, ": ", alert);
    switch (reason) {
      case SSL_R_BINDER_DOES_NOT_VERIFY:
      case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
      case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        if (!is_secret) break;
        return "the two sides do not have the same job secret (SYNCLINE_SECRET_FILE)";
      case SSL_R_NO_APPLICATION_PROTOCOL:
      case SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL:
        return std::string(kOtherConnection);
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the other side has no certificate";
      case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "the other side asks for a certificate, and this one has none";
      default:
        break;
    }
  }
  const char* const text = ERR_reason_error_string(error);
  return absl::StrCat("the TLS handshake has failed: ",
                      text == nullptr ? absl::StrCat("error ", error) : text);
}

std::string TakeErrors() {
  std::vector<std::string> texts;
  while (const unsigned long error = ERR_get_error()) {
    const char* const text = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error))
                                                     : ERR_reason_error_string(error);
    texts.push_back(text == nullptr ? absl::StrCat("error ", error) : text);
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace syncline::tls
