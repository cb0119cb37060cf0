#include "core/tls/session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "core/tls/errors.h"
#include "syncline/status.h"

namespace syncline::tls {
namespace {

// So much is encrypted before the kernel gets it in one call: the other side decrypts it while this
// one encrypts what follows.
constexpr size_t kBurstBytes = 32 << 10;
constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// How much is read from a socket at once: several records. Less during the handshake, when the
// other side may be a stranger.
constexpr size_t kReadBytes = 128 << 10;
// Shorter pieces share a record with what follows: a header and what it announces are one packet.
constexpr size_t kShortPiece = 4 << 10;

// What a server sends once it has accepted the client. Without it, a client would learn that it is
// refused only when it reads.
constexpr char kAccepted = 'A';

constexpr absl::string_view kRefusalUrl = "syncline/tls-refusal";

absl::Status RefusalError(absl::string_view text) {
  absl::Status status = NetworkError(text);
  status.SetPayload(kRefusalUrl, absl::Cord());
  return status;
}

bool IsAddress(const std::string& name) {
  ASN1_OCTET_STRING* const address = a2i_IPADDRESS(name.c_str());
  ASN1_OCTET_STRING_free(address);
  return address != nullptr;
}

// Of X509_VERIFY_PARAM.
bool Demand(SSL* ssl, const std::string& peer_name) {
  if (peer_name.empty()) return true;
  X509_VERIFY_PARAM* const demands = SSL_get0_param(ssl);
  if (IsAddress(peer_name)) {
    return X509_VERIFY_PARAM_set1_ip_asc(demands, peer_name.c_str()) == 1;
  }
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set1_host(ssl, peer_name.c_str()) == 1;
}

// Asks the server for the connection, as the one protocol that the client offers (RFC 7301). The
// handshake covers it, so nobody on the way can exchange two connections for each other.
bool AskFor(SSL* ssl, const std::string& connection) {
  if (connection.empty()) return true;
  const std::string offer = static_cast<char>(connection.size()) + connection;
  return SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(offer.data()),
                             static_cast<unsigned>(offer.size())) == 0;
}

}  // namespace

// Reads the socket, and keeps what is written until there is enough for a call of send(2).
class SessionBio {
 public:
  static BIO* New(Session* session) {
    BIO* const bio = BIO_new(Method());
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, session);
    BIO_set_init(bio, 1);
    return bio;
  }

 private:
  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "syncline");
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_ctrl(made, &Control);
      return made;
    }();
    return method;
  }

  static int Write(BIO* bio, const char* data, int bytes) {
    Session& session = *static_cast<Session*>(BIO_get_data(bio));
    session.out_.insert(session.out_.end(), data, data + bytes);
    return bytes;
  }

  static int Read(BIO* bio, char* data, int bytes) {
    const Session& session = *static_cast<Session*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    ssize_t received;
    do {
      received = recv(session.socket_, data, static_cast<size_t>(bytes), MSG_DONTWAIT);
    } while (received < 0 && errno == EINTR);
    if (received < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    if (received == 0) errno = ECONNRESET;
    return received > 0 ? static_cast<int>(received) : -1;
  }

  static long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
};

bool IsRefusal(const absl::Status& status) { return status.GetPayload(kRefusalUrl).has_value(); }

std::unique_ptr<Session> Session::Create(SSL_CTX* context, Options options) {
  std::unique_ptr<Session> session(new Session(std::move(options)));
  session->ssl_ = SSL_new(context);
  if (session->ssl_ == nullptr) return nullptr;
  SSL* const ssl = session->ssl_;
  BIO* const bio = SessionBio::New(session.get());
  if (bio == nullptr) return nullptr;
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, session.get());
  if (!Demand(ssl, session->options_.peer_name)) return nullptr;
  if (session->options_.role == Role::kClient) {
    if (!AskFor(ssl, session->options_.connection)) return nullptr;
    SSL_set_connect_state(ssl);
    // It takes no server that proves a certificate instead of the key.
    if (!session->options_.key.empty()) SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl);
  }
  return session;
}

Session::Session(Options options) : options_(std::move(options)) {}

Session::~Session() { SSL_free(ssl_); }

Session& Session::Of(const SSL* ssl) { return *static_cast<Session*>(SSL_get_app_data(ssl)); }

absl::StatusOr<bool> Session::Handshake(int socket) {
  socket_ = socket;
  while (!SSL_is_init_finished(ssl_)) {
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(ssl_);
    const int error = SSL_get_error(ssl_, result);
    absl::Status failure;
    if (result != 1 && error != SSL_ERROR_WANT_READ) failure = HandshakeError(error);
    // An alert says to the other side why this one gives up.
    const bool is_flushed = Flush(socket);
    if (!failure.ok()) return failure;
    // A new connection has room for it all.
    if (!is_flushed) return HandshakeError(SSL_ERROR_SYSCALL);
    if (result != 1) return false;
  }
  if (is_confirmed_) return true;
  SSL_set_default_read_buffer_len(ssl_, kReadBytes);
  if (options_.role == Role::kServer) {
    SYNCLINE_RETURN_IF_ERROR(CheckIsAskedFor());
    const iovec accepted = {const_cast<char*>(&kAccepted), 1};
    if (Send(socket, &accepted, 1) != 1) return HandshakeError(SSL_ERROR_SYSCALL);
  } else {
    char answer = 0;
    ERR_clear_error();
    errno = 0;
    const int result = SSL_read(ssl_, &answer, 1);
    const int error = SSL_get_error(ssl_, result);
    if (result != 1 && error == SSL_ERROR_WANT_READ) return false;
    if (result != 1) return HandshakeError(error);
    if (answer != kAccepted) return NetworkError("the other side does not follow the protocol");
  }
  is_confirmed_ = true;
  return true;
}

absl::Status Session::CheckIsAskedFor() const {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  if (size == 0 && !options_.connection.empty()) {
    return RefusalError(
        "the other side does not say which connection it means: does it run the same version of "
        "Syncline?");
  }
  const absl::string_view asked(reinterpret_cast<const char*>(name), size);
  return asked == options_.connection ? absl::OkStatus() : RefusalError(kOtherConnection);
}

absl::Status Session::HandshakeError(int result) {
  if (!refused_.empty()) {
    return RefusalError(absl::StrCat(
        "the other side's certificate ", refused_,
        " is not accepted: ", DescribeVerdict(SSL_get_verify_result(ssl_), options_.peer_name)));
  }
  if (result == SSL_ERROR_SSL) {
    return RefusalError(
        DescribeHandshakeError(ERR_peek_error(), options_.description, !options_.key.empty()));
  }
  has_ended_ = true;
  return NetworkError(
      absl::StrCat("the other side has ended the connection while it was being encrypted",
                   errno == 0 ? "" : absl::StrCat(": ", std::strerror(errno))));
}

ssize_t Session::Send(int socket, const iovec* pieces, size_t count) {
  socket_ = socket;
  size_t sent = 0;
  while (true) {
    if (held_ == 0) held_ = EncryptBurst(pieces, count, sent);
    if (held_ == 0) return static_cast<ssize_t>(sent);
    if (is_broken_) {
      errno = EPROTO;
      return -1;
    }
    if (!Flush(socket)) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    sent += std::exchange(held_, 0);
  }
}

size_t Session::EncryptBurst(const iovec* pieces, size_t count, size_t skipped) {
  size_t bytes = 0;
  for (size_t i = 0; i < count && bytes < kBurstBytes; ++i) {
    if (skipped >= pieces[i].iov_len) {
      skipped -= pieces[i].iov_len;
      continue;
    }
    const char* data = static_cast<const char*>(pieces[i].iov_base) + skipped;
    size_t left = std::min(pieces[i].iov_len - skipped, kBurstBytes - bytes);
    skipped = 0;
    bytes += left;
    if (!gathered_.empty() || left < kShortPiece) {
      const size_t part = std::min(left, kRecordBytes - gathered_.size());
      gathered_.insert(gathered_.end(), data, data + part);
      data += part;
      left -= part;
      if (gathered_.size() == kRecordBytes) EncryptGathered();
    }
    if (left > 0) Encrypt(data, left);
  }
  if (!gathered_.empty()) EncryptGathered();
  return bytes;
}

void Session::EncryptGathered() {
  Encrypt(gathered_.data(), gathered_.size());
  gathered_.clear();
}

// AES-GCM may protect some 2^24 records with one key (RFC 8446, 5.5).
void Session::Encrypt(const void* data, size_t bytes) {
  const uint64_t records = (bytes + kRecordBytes - 1) / kRecordBytes;
  if (is_broken_) return;
  ERR_clear_error();
  if (records_ + records > options_.records_per_key) {
    records_ = 0;
    is_broken_ = SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1;
  }
  records_ += records;
  size_t written = 0;
  // The buffer takes everything, so this writes all of it.
  if (!is_broken_) is_broken_ = SSL_write_ex(ssl_, data, bytes, &written) != 1 || written != bytes;
}

bool Session::Flush(int socket) {
  while (out_sent_ < out_.size()) {
    const ssize_t sent =
        send(socket, out_.data() + out_sent_, out_.size() - out_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  out_sent_ = 0;
  return true;
}

ssize_t Session::Receive(int socket, const iovec* pieces, size_t count) {
  socket_ = socket;
  if (read_error_ != 0) {
    errno = read_error_;
    return -1;
  }
  size_t received = 0;
  for (size_t i = 0; i < count; ++i) {
    char* const data = static_cast<char*>(pieces[i].iov_base);
    for (size_t at = 0; at < pieces[i].iov_len;) {
      size_t part = 0;
      ERR_clear_error();
      errno = 0;
      const int result = SSL_read_ex(ssl_, data + at, pieces[i].iov_len - at, &part);
      if (result == 1) {
        at += part;
        received += part;
        continue;
      }
      switch (SSL_get_error(ssl_, result)) {
        case SSL_ERROR_WANT_READ:
          break;
        case SSL_ERROR_SYSCALL:
          read_error_ = errno == 0 ? ECONNRESET : errno;
          break;
        case SSL_ERROR_ZERO_RETURN:
          read_error_ = ECONNRESET;
          break;
        default:
          read_error_ = EPROTO;
      }
      if (received > 0) return static_cast<ssize_t>(received);
      errno = read_error_ == 0 ? EAGAIN : read_error_;
      return -1;
    }
  }
  return static_cast<ssize_t>(received);
}

}  // namespace syncline::tls
