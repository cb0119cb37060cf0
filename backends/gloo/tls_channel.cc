#include "backends/gloo/tls_channel.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/gloo/transport.h"
#include "core/tls/session.h"
#include "gloo/transport/tcp/address.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

using gloo::transport::tcp::Address;

class TlsChannel final : public gloo::transport::tcp::Channel {
 public:
  explicit TlsChannel(std::unique_ptr<tls::Session> session) : session_(std::move(session)) {}

  bool handshake(int fd) override {
    const absl::StatusOr<bool> is_complete = session_->Handshake(fd);
    if (!is_complete.ok()) ThrowThroughGloo(is_complete.status());
    return *is_complete;
  }
  ssize_t writeSome(int fd, const iovec* iov, int count) override {
    return session_->Send(fd, iov, static_cast<size_t>(count));
  }
  ssize_t readSome(int fd, void* data, size_t nbytes) override {
    const iovec piece = {data, nbytes};
    return session_->Receive(fd, &piece, 1);
  }

 private:
  const std::unique_ptr<tls::Session> session_;
};

// As certificates name it.
std::string HostOf(const Address& address) {
  const sockaddr_storage& storage = address.getSockaddr();
  char text[NI_MAXHOST] = "";
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&storage), sizeof(storage), text,
                                sizeof(text), nullptr, 0, NI_NUMERICHOST);
  // Without a name every certificate would do.
  if (error != 0) ThrowThroughGloo(NetworkError(gai_strerror(error)));
  return text;
}

}  // namespace

gloo::transport::tcp::ChannelFactory TlsChannels(std::shared_ptr<tls::Context> tls) {
  return [tls = std::move(tls)](int /*rank*/, bool is_initiator, const Address& listener) {
    const std::string purpose = absl::StrCat("gloo ", listener.getSeq());
    absl::StatusOr<std::unique_ptr<tls::Session>> session =
        is_initiator ? tls->Connect(purpose, HostOf(listener)) : tls->Accept(purpose);
    if (!session.ok()) ThrowThroughGloo(session.status());
    return std::make_unique<TlsChannel>(*std::move(session));
  };
}

}  // namespace syncline::gloo_backend
