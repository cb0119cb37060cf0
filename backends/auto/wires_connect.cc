// Connects the members of a lane to each other.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/auto/wires.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/base/status.h"

namespace syncline {
namespace {

absl::Status Failed(absl::string_view what) {
  return NetworkError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<SocketAddress> Parse(const std::string& address, int port,
                                    const Deadline& deadline = Deadline(kResolveTimeout)) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, Resolve(address, {port}, deadline));
  return addresses.front();
}

absl::StatusOr<UniqueFd> ConnectTo(const Wires::Member& member, int place,
                                   const Deadline& deadline) {
  const std::vector<std::string> words = absl::StrSplit(member.ticket, ' ');
  int port = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &port) ||
      words[2].size() != kHelloSecretSize) {
    return NetworkError(absl::StrCat(member.name, " does not say where it listens"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const SocketAddress address, Parse(words[0], port, deadline));
  auto socket = Connect(address, SOCK_STREAM, deadline);
  absl::Status status = socket.status();
  if (status.ok()) status = SendHello(socket->get(), words[2], place, deadline);
  if (!status.ok()) return Annotate(status, member.name);
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireDoor>> WireDoor::Open(const std::string& address) {
  SYNCLINE_ASSIGN_OR_RETURN(SocketAddress own, Parse(address, 0));
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, OpenSocket(own.family(), SOCK_STREAM));
  if (bind(socket.get(), own.get(), own.length) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return Failed(absl::StrCat("listen on address '", address, "'"));
  }
  own.length = sizeof(own.storage);
  char port[NI_MAXSERV] = {};
  if (getsockname(socket.get(), own.get(), &own.length) != 0 ||
      getnameinfo(own.get(), own.length, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) != 0) {
    return Failed("name the socket");
  }
  return std::unique_ptr<WireDoor>(new WireDoor(std::move(socket), address, std::atoi(port)));
}

WireDoor::WireDoor(UniqueFd socket, std::string address, int port)
    : socket_(std::move(socket)),
      address_(std::move(address)),
      port_(port),
      secret_(NewHelloSecret()) {}

std::string WireDoor::ticket() const { return absl::StrCat(address_, " ", port_, " ", secret_); }

// Connects to those before this rank on the lane, and waits for those after it. The kernel accepts
// for a rank that is still busy, so no ranks wait for each other in a circle.
absl::StatusOr<std::unique_ptr<Wires>> Wires::Connect(const WireDoor& door,
                                                      absl::Span<const Member> members, int place,
                                                      const Deadline& deadline) {
  const int size = static_cast<int>(members.size());
  std::unique_ptr<Wires> wires(new Wires(members.size()));
  std::vector<Link>& links = wires->links_;
  for (int i = 0; i < size; ++i) links[i].name = members[i].name;
  for (int to = 0; to < place; ++to) {
    SYNCLINE_ASSIGN_OR_RETURN(links[to].socket, ConnectTo(members[to], place, deadline));
  }
  const int awaited = size - 1 - place;
  RankAcceptor acceptor(door.socket(), std::string(door.secret()), awaited);
  for (int connected = 0; connected < awaited;) {
    absl::StatusOr<RankAcceptor::Connection> connection = acceptor.Accept(deadline);
    if (!connection.ok() && KindOf(connection.status()) == ErrorKind::kTimeout) {
      std::vector<std::string> late;
      for (int from = place + 1; from < size; ++from) {
        if (!links[from].socket.valid()) late.push_back(links[from].name);
      }
      return TimeoutError(absl::StrCat(absl::StrJoin(late, ", "), " did not connect within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    SYNCLINE_RETURN_IF_ERROR(connection.status());
    const int from = connection->rank;
    if (from <= place || from >= size || links[from].socket.valid()) continue;
    links[from].socket = std::move(connection->socket);
    ++connected;
  }
  for (const Link& link : links) {
    const int on = 1;
    if (link.socket.valid()) {
      setsockopt(link.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
  }
  return wires;
}

}  // namespace syncline
