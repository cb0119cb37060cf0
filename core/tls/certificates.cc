#include "core/tls/certificates.h"

#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/tls/errors.h"
#include "syncline/status.h"

namespace syncline::tls {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

constexpr int kSerialBits = 120;

absl::Status Failed() {
  return BackendError(absl::StrCat("no certificate can be made: ", TakeErrors()));
}

Key NewKey() { return Key(EVP_EC_gen("P-256"), &EVP_PKEY_free); }

bool SetSerial(X509* certificate) {
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> serial(BN_new(), &BN_free);
  return serial != nullptr &&
         BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetName(X509* certificate, const char* name) {
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(name), -1, -1, 0) == 1;
}

bool SetTime(ASN1_TIME* time, absl::Duration from_now) {
  return ASN1_TIME_set(time, absl::ToTimeT(absl::Now() + from_now)) != nullptr;
}

bool Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  if (extension == nullptr) return false;
  const bool is_added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return is_added;
}

// Names that OpenSSL would read as something else are refused before.
std::string AlternativeNames(const std::vector<std::string>& names) {
  std::vector<std::string> entries;
  for (const std::string& name : names) {
    ASN1_OCTET_STRING* const address = a2i_IPADDRESS(name.c_str());
    entries.push_back(absl::StrCat(address == nullptr ? "DNS:" : "IP:", name));
    ASN1_OCTET_STRING_free(address);
  }
  return absl::StrJoin(entries, ",");
}

bool IsName(const std::string& name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_*:";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string::npos;
}

// Signed by `issuer_key`; by itself if there is no issuer.
Certificate NewCertificate(const CertificateRequest& request, EVP_PKEY* key, X509* issuer,
                           EVP_PKEY* issuer_key) {
  Certificate certificate(X509_new(), &X509_free);
  X509* const made = certificate.get();
  const bool is_authority = issuer == nullptr;
  const absl::Duration ends =
      request.ends + (is_authority ? request.authority_outlives : absl::ZeroDuration());
  if (made == nullptr || X509_set_version(made, X509_VERSION_3) != 1 || !SetSerial(made) ||
      !SetName(made, is_authority ? "authority of a syncline job" : "syncline job") ||
      X509_set_issuer_name(made, X509_get_subject_name(is_authority ? made : issuer)) != 1 ||
      !SetTime(X509_getm_notBefore(made), request.begins) ||
      !SetTime(X509_getm_notAfter(made), ends) || X509_set_pubkey(made, key) != 1) {
    return Certificate(nullptr, &X509_free);
  }
  const std::vector<std::pair<int, std::string>> extensions =
      is_authority
          ? std::vector<std::pair<int, std::string>>{{NID_basic_constraints,
                                                      "critical,CA:TRUE,pathlen:0"},
                                                     {NID_key_usage, "critical,keyCertSign"},
                                                     {NID_subject_key_identifier, "hash"}}
          : std::vector<std::pair<int, std::string>>{
                {NID_basic_constraints, "critical,CA:FALSE"},
                {NID_key_usage, "critical,digitalSignature"},
                {NID_ext_key_usage, "serverAuth,clientAuth"},
                {NID_authority_key_identifier, "keyid:always"},
                {NID_subject_alt_name, AlternativeNames(request.names)}};
  for (const auto& [kind, value] : extensions) {
    if (!Extend(made, is_authority ? made : issuer, kind, value)) {
      return Certificate(nullptr, &X509_free);
    }
  }
  if (X509_sign(made, issuer_key, EVP_sha256()) == 0) return Certificate(nullptr, &X509_free);
  return certificate;
}

// A private key that is overwritten cannot be had again.
absl::Status CheckNoneExists(const std::string& folder) {
  for (const char* name : {kKeyFile, kCertificateFile, kAuthoritiesFile}) {
    const std::string path = absl::StrCat(folder, "/", name);
    struct stat info = {};
    if (lstat(path.c_str(), &info) != 0) continue;  // Write says what else is wrong.
    return ArgumentError(absl::StrCat("'", path, "' exists already and is not overwritten: remove ",
                                      "it, or name another folder"));
  }
  return absl::OkStatus();
}

absl::Status Write(const std::string& folder, absl::string_view name,
                   absl::FunctionRef<bool(FILE*)> put) {
  const std::string path = absl::StrCat(folder, "/", name);
  const auto error = [&] {
    return ArgumentError(absl::StrCat("'", path, "' cannot be written",
                                      errno == 0 ? "" : absl::StrCat(": ", std::strerror(errno))));
  };
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return error();
  FILE* const file = fdopen(fd, "w");
  if (file == nullptr) {
    close(fd);
    return error();
  }
  errno = 0;  // OpenSSL may fail without one.
  const bool is_written = put(file);
  const bool is_closed = fclose(file) == 0;
  return is_written && is_closed ? absl::OkStatus() : error();
}

}  // namespace

absl::Status NewCertificates(const std::string& folder, const CertificateRequest& request) {
  if (request.names.empty()) return ArgumentError("a certificate needs a name at least");
  for (const std::string& name : request.names) {
    if (!IsName(name)) {
      return ArgumentError(absl::StrCat("'", name, "' is neither a host name nor an address"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckNoneExists(folder));
  const Key authority_key = NewKey(), key = NewKey();
  if (authority_key == nullptr || key == nullptr) return Failed();
  const Certificate authority =
      NewCertificate(request, authority_key.get(), nullptr, authority_key.get());
  if (authority == nullptr) return Failed();
  const Certificate certificate =
      NewCertificate(request, key.get(), authority.get(), authority_key.get());
  if (certificate == nullptr) return Failed();
  SYNCLINE_RETURN_IF_ERROR(Write(folder, kKeyFile, [&](FILE* file) {
    return PEM_write_PKCS8PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1;
  }));
  SYNCLINE_RETURN_IF_ERROR(Write(folder, kCertificateFile, [&](FILE* file) {
    return PEM_write_X509(file, certificate.get()) == 1;
  }));
  return Write(folder, kAuthoritiesFile,
               [&](FILE* file) { return PEM_write_X509(file, authority.get()) == 1; });
}

}  // namespace syncline::tls
