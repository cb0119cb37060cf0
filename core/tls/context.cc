#include "core/tls/context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/env.h"
#include "core/base/hmac.h"
#include "core/tls/errors.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tls {
namespace {

// TLS_AES_128_GCM_SHA256, whose hash a key of 32 bytes fits. Processors encrypt faster with it than
// they copy to the network.
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr unsigned char kIdentity[] = "syncline";
constexpr size_t kIdentityBytes = sizeof(kIdentity) - 1;

// A chain of certificates may have so many bytes.
constexpr long kMaxCertificates = 32 << 10;

// A session that stands for the shared key; nullptr if memory is short.
SSL_SESSION* SessionOfKey(SSL* ssl) {
  const absl::string_view key = Session::Of(ssl).key();
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) != 1 ||
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherId)) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int UseKey(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** identity, size_t* identity_bytes,
           SSL_SESSION** session) {
  *session = SessionOfKey(ssl);
  *identity = kIdentity;
  *identity_bytes = kIdentityBytes;
  return *session == nullptr ? 0 : 1;
}

int FindKey(SSL* ssl, const unsigned char* identity, size_t identity_bytes, SSL_SESSION** session) {
  const absl::string_view name(reinterpret_cast<const char*>(identity), identity_bytes);
  const absl::string_view known(reinterpret_cast<const char*>(kIdentity), kIdentityBytes);
  *session = name == known ? SessionOfKey(ssl) : nullptr;
  return name == known && *session == nullptr ? 0 : 1;
}

// A server takes the one protocol that its connection stands for: see Session::Options.
int SelectConnection(SSL* ssl, const unsigned char** selected, unsigned char* selected_size,
                     const unsigned char* offered, unsigned offered_size, void* /*argument*/) {
  const absl::string_view connection = Session::Of(ssl).connection();
  const absl::string_view names(reinterpret_cast<const char*>(offered), offered_size);
  if (names.empty() || names.substr(1) != connection) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *selected = offered + 1;
  *selected_size = static_cast<unsigned char>(connection.size());
  return SSL_TLSEXT_ERR_OK;
}

// OpenSSL would otherwise ask at the terminal.
int NoPassword(char* /*password*/, int /*size*/, int /*is_for_writing*/, void* /*data*/) {
  return 0;
}

int Verify(int is_accepted, X509_STORE_CTX* chain) {
  if (is_accepted != 1) {
    const SSL* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
    Session::Of(ssl).NoteRefused(DescribeCertificate(X509_STORE_CTX_get_current_cert(chain)));
  }
  return is_accepted;
}

absl::Status FileError(absl::string_view variable, absl::string_view file, absl::string_view what) {
  return ArgumentError(
      absl::StrCat("'", file, "', which ", variable, " names, cannot be used: ", what));
}

// A FIFO would be waited for.
absl::Status CheckIsFile(absl::string_view variable, const std::string& file) {
  struct stat info = {};
  if (stat(file.c_str(), &info) != 0) return FileError(variable, file, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return FileError(variable, file, "it is not a regular file");
  return absl::OkStatus();
}

// As PostgreSQL does: root may let a group read it, whose processes then need no copy of their own.
absl::Status CheckOnlyOwnerReads(absl::string_view variable, const std::string& file) {
  struct stat info = {};
  if (stat(file.c_str(), &info) != 0) return FileError(variable, file, std::strerror(errno));
  const bool is_of_root = info.st_uid == 0 && geteuid() != 0;
  const mode_t too_much = info.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((info.st_mode & too_much) == 0) return absl::OkStatus();
  return FileError(
      variable, file,
      absl::StrFormat("others than its owner may use it (mode %04o); run `chmod %s %s`",
                      info.st_mode & 07777, is_of_root ? "640" : "600", file));
}

absl::Status UseCertificates(SSL_CTX* context, const Settings& settings) {
  SYNCLINE_RETURN_IF_ERROR(CheckIsFile("SYNCLINE_TLS_CERT", settings.certificate_file));
  SYNCLINE_RETURN_IF_ERROR(CheckIsFile("SYNCLINE_TLS_KEY", settings.key_file));
  SYNCLINE_RETURN_IF_ERROR(CheckOnlyOwnerReads("SYNCLINE_TLS_KEY", settings.key_file));
  SYNCLINE_RETURN_IF_ERROR(CheckIsFile("SYNCLINE_TLS_CA", settings.authorities_file));
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, settings.certificate_file.c_str()) != 1) {
    return FileError("SYNCLINE_TLS_CERT", settings.certificate_file,
                     absl::StrCat("it is no certificate: ", TakeErrors()));
  }
  const X509* const own = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(own)) <= 0) {
    return FileError("SYNCLINE_TLS_CERT", settings.certificate_file,
                     absl::StrCat("its certificate ", DescribeCertificate(own), " has expired"));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0) {
    return FileError(
        "SYNCLINE_TLS_CERT", settings.certificate_file,
        absl::StrCat("its certificate ", DescribeCertificate(own), " is not valid yet"));
  }
  SSL_CTX_set_default_passwd_cb(context, &NoPassword);
  if (SSL_CTX_use_PrivateKey_file(context, settings.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return FileError("SYNCLINE_TLS_KEY", settings.key_file,
                     absl::StrCat("it is no private key of that certificate, or has a password: ",
                                  TakeErrors()));
  }
  if (SSL_CTX_load_verify_locations(context, settings.authorities_file.c_str(), nullptr) != 1) {
    return FileError("SYNCLINE_TLS_CA", settings.authorities_file,
                     absl::StrCat("it has no certificates: ", TakeErrors()));
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &Verify);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Context>> Context::Create(Settings settings, std::string secret,
                                                         uint64_t records_per_key) {
  if (settings.mode == Mode::kOff) return nullptr;
  if (settings.mode == Mode::kSecret && secret.empty()) {
    return ArgumentError(
        "SYNCLINE_TLS is secret, but this job has none: SYNCLINE_SECRET_FILE must name a file that "
        "has it");
  }
  std::shared_ptr<Context> context(
      new Context(std::move(settings), std::move(secret), records_per_key));
  absl::MutexLock lock(&context->mutex_);
  context->versions_ = context->FileVersions();
  SYNCLINE_ASSIGN_OR_RETURN(context->context_, context->Load());
  return context;
}

absl::StatusOr<std::shared_ptr<Context>> Context::FromEnvironment(std::string secret) {
  SYNCLINE_ASSIGN_OR_RETURN(Settings settings, SettingsFromEnvironment());
  if (settings.mode == Mode::kSecret && secret.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(secret, base::JobSecret());
  }
  return Create(std::move(settings), std::move(secret));
}

Context::Context(Settings settings, std::string secret, uint64_t records_per_key)
    : settings_(std::move(settings)),
      secret_(std::move(secret)),
      records_per_key_(records_per_key) {}

absl::StatusOr<Context::ContextPointer> Context::Load() const {
  ContextPointer context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (context == nullptr) return BackendError(absl::StrCat("no TLS context: ", TakeErrors()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_max_cert_list(context.get(), kMaxCertificates);
  // Idle connections keep no buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  if (settings_.mode == Mode::kSecret) {
    SSL_CTX_set_ciphersuites(context.get(), kCipher);
    SSL_CTX_set_psk_use_session_callback(context.get(), &UseKey);
    SSL_CTX_set_psk_find_session_callback(context.get(), &FindKey);
  } else {
    SSL_CTX_set_ciphersuites(
        context.get(),
        absl::StrCat(kCipher, ":TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384").c_str());
    SSL_CTX_set_alpn_select_cb(context.get(), &SelectConnection, nullptr);
    SYNCLINE_RETURN_IF_ERROR(UseCertificates(context.get(), settings_));
  }
  return context;
}

std::vector<int64_t> Context::FileVersions() const {
  std::vector<int64_t> versions;
  for (const std::string& file :
       {settings_.certificate_file, settings_.key_file, settings_.authorities_file}) {
    struct stat info = {};
    if (file.empty() || stat(file.c_str(), &info) != 0) continue;
    for (const int64_t part :
         {static_cast<int64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
          // Changes with the mode and the owner, too.
          static_cast<int64_t>(info.st_ctim.tv_sec), static_cast<int64_t>(info.st_ctim.tv_nsec)}) {
      versions.push_back(part);
    }
  }
  return versions;
}

// Files that do not fit each other are being replaced, so what was read before still counts.
Context::ContextPointer Context::Current() {
  absl::MutexLock lock(&mutex_);
  if (settings_.mode != Mode::kCertificates) return context_;
  const std::vector<int64_t> versions = FileVersions();
  if (versions == versions_) return context_;
  absl::StatusOr<ContextPointer> loaded = Load();
  if (loaded.ok()) {
    versions_ = versions;
    context_ = *std::move(loaded);
  } else if (refused_ != versions) {  // The next connection tries again, but says nothing.
    refused_ = versions;
    LogInBackground(LogLevel::kWarning,
                    absl::StrCat("certificates have changed, but those before are still used: ",
                                 loaded.status().message()));
  }
  return context_;
}

absl::StatusOr<std::unique_ptr<Session>> Context::Connect(absl::string_view purpose,
                                                          const std::string& host) {
  return NewSession(Session::Role::kClient, purpose,
                    settings_.peer_name.empty() ? host : settings_.peer_name);
}

absl::StatusOr<std::unique_ptr<Session>> Context::Accept(absl::string_view purpose) {
  return NewSession(Session::Role::kServer, purpose, settings_.peer_name);
}

absl::StatusOr<std::unique_ptr<Session>> Context::NewSession(Session::Role role,
                                                             absl::string_view purpose,
                                                             const std::string& peer_name) {
  Session::Options options;
  options.role = role;
  options.records_per_key = records_per_key_;
  if (settings_.mode == Mode::kSecret) {
    options.key = base::HmacSha256(secret_, absl::StrCat("syncline TLS key ", purpose));
    options.description = "the job's secret";
  } else {
    options.connection = base::HmacSha256(purpose, "syncline TLS connection");
    options.peer_name = peer_name;
    options.description = absl::StrCat("the certificate in '", settings_.certificate_file, "'");
  }
  std::unique_ptr<Session> session = Session::Create(Current().get(), std::move(options));
  if (session == nullptr) return BackendError("there is no memory for an encrypted connection");
  return session;
}

}  // namespace syncline::tls
