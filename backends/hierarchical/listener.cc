#include "backends/hierarchical/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/resolve.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

absl::Status SystemError(absl::string_view what) {
  return NetworkError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<base::SocketAddress> Parse(
    const std::string& address, int port,
    const Deadline& deadline = Deadline(base::kResolveTimeout)) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, base::Resolve(address, {port}, deadline));
  return addresses.front();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address) {
  SYNCLINE_ASSIGN_OR_RETURN(base::SocketAddress own, Parse(address, 0));
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd socket, base::OpenSocket(own.family(), SOCK_STREAM));
  if (bind(socket.get(), own.get(), own.length) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return SystemError(absl::StrCat("listen on address '", address, "'"));
  }
  // The kernel has chosen the port, because several groups may listen on one address.
  own.length = sizeof(own.storage);
  char port[NI_MAXSERV] = {};
  if (getsockname(socket.get(), own.get(), &own.length) != 0 ||
      getnameinfo(own.get(), own.length, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) != 0) {
    return SystemError("name the socket");
  }
  return std::unique_ptr<Listener>(new Listener(std::move(socket), address, std::atoi(port)));
}

Listener::Listener(base::UniqueFd socket, std::string address, int port)
    : socket_(std::move(socket)),
      address_(std::move(address)),
      port_(port),
      secret_(backends::NewHelloSecret()) {}

std::string Listener::endpoint() const { return absl::StrCat(address_, " ", port_, " ", secret_); }

absl::StatusOr<base::UniqueFd> ConnectToListener(const std::string& endpoint, int number,
                                                 const Deadline& deadline) {
  const std::vector<std::string> words = absl::StrSplit(endpoint, ' ');
  int port = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &port) ||
      words[2].size() != backends::kHelloSecretSize) {
    return NetworkError("it does not say where it listens");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const base::SocketAddress address, Parse(words[0], port, deadline));
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd socket, base::Connect(address, SOCK_STREAM, deadline));
  SYNCLINE_RETURN_IF_ERROR(backends::SendHello(socket.get(), words[2], number, deadline));
  return socket;
}

}  // namespace syncline::hierarchical
