// The certificates of etcd_testing.h.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "store/etcd/etcd_testing.h"

namespace syncline::etcd_store {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(FILE* file) const { std::fclose(file); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

void Check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "openssl: %s\n", what.c_str());
  std::abort();
}

template <typename T>
Owned<T> Read(const std::string& path, T* (*read)(FILE*, T**, pem_password_cb*, void*)) {
  Owned<FILE> file(std::fopen(path.c_str(), "r"));
  Check(file != nullptr, path);
  Owned<T> object(read(file.get(), nullptr, nullptr, nullptr));
  Check(object != nullptr, path);
  return object;
}

void Extend(X509* certificate, int nid, const char* value) {
  Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value));
  Check(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1, value);
}

// Signed by `issuer`, or by itself.
TestCertificate Make(const std::string& folder, const std::string& name,
                     const TestCertificate* issuer) {
  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  Owned<X509> certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  static int64_t serial = 0;
  ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24 * 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  if (issuer == nullptr) {
    X509_set_issuer_name(certificate.get(), subject);
    Extend(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
    Check(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0, name);
  } else {
    const Owned<X509> above = Read<X509>(issuer->cert, &PEM_read_X509);
    const Owned<EVP_PKEY> above_key = Read<EVP_PKEY>(issuer->key, &PEM_read_PrivateKey);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(above.get()));
    Extend(certificate.get(), NID_subject_alt_name, "IP:127.0.0.1");
    Extend(certificate.get(), NID_ext_key_usage, "serverAuth,clientAuth");
    Check(X509_sign(certificate.get(), above_key.get(), EVP_sha256()) > 0, name);
  }
  const TestCertificate made = {folder + "/" + name + ".pem", folder + "/" + name + ".key"};
  Owned<FILE> cert_file(std::fopen(made.cert.c_str(), "w"));
  Check(PEM_write_X509(cert_file.get(), certificate.get()) == 1, made.cert);
  Owned<FILE> key_file(std::fopen(made.key.c_str(), "w"));
  Check(PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1,
        made.key);
  return made;
}

}  // namespace

TestAuthority::TestAuthority()
    : folder_(NewTestFolder()), own_(Make(folder_, "authority", nullptr)) {}

TestCertificate TestAuthority::Sign(const std::string& name) const {
  return Make(folder_, name, &own_);
}

}  // namespace syncline::etcd_store
