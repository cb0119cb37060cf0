#include "backends/common/fd_passing.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/errno_payload.h"
#include "core/base/sockets.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// How often to check whether an awaited rank has died.
constexpr absl::Duration kPeerCheckInterval = absl::Milliseconds(100);

absl::Status Failed(absl::string_view what) {
  return BackendError(absl::StrCat(
      "cannot ", what,
      " the socket over which ranks of one host share memory: ", std::strerror(errno)));
}

// The address of `name` in the abstract name space. Nothing if the name is too long.
std::optional<base::SocketAddress> AbstractAddress(absl::string_view name) {
  sockaddr_un address = {};
  if (name.size() + 1 > sizeof(address.sun_path)) return std::nullopt;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // A leading zero: abstract.
  base::SocketAddress result;
  std::memcpy(&result.storage, &address, sizeof(address));
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

bool IsOwnUser(int connection) {
  ucred peer;
  socklen_t length = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

// A message of one byte with room for a descriptor as ancillary data. See cmsg(3).
struct FdMessage {
  FdMessage() {
    content = {&byte, 1};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }

  char byte = 0;
  iovec content;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

bool SendFd(int connection, int descriptor) {
  FdMessage message;
  cmsghdr* const ancillary = CMSG_FIRSTHDR(&message.header);
  ancillary->cmsg_level = SOL_SOCKET;
  ancillary->cmsg_type = SCM_RIGHTS;
  ancillary->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(ancillary), &descriptor, sizeof(int));
  return sendmsg(connection, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdServer>> FdServer::Open() {
  const std::string name =
      absl::StrCat("syncline/", NewHelloSecret());  // Nobody can take it first.
  const base::SocketAddress address = *AbstractAddress(name);
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd socket, base::OpenSocket(AF_UNIX, SOCK_SEQPACKET));
  if (bind(socket.get(), address.get(), address.length) != 0) return Failed("bind");
  if (listen(socket.get(), SOMAXCONN) != 0) return Failed("listen on");
  return std::unique_ptr<FdServer>(new FdServer(std::move(socket), name));
}

FdServer::FdServer(base::UniqueFd socket, std::string name)
    : socket_(std::move(socket)), name_(std::move(name)), secret_(NewHelloSecret()) {}

std::string FdServer::endpoint() const { return absl::StrCat(name_, " ", secret_); }

absl::Status FdServer::Serve(int descriptor, int size, const Deadline& deadline,
                             PeerProcesses* processes, const PeerCheck& check) {
  std::vector<int> awaited;
  for (int rank = 1; rank < size; ++rank) awaited.push_back(rank);
  const auto find = [&](int rank) { return std::find(awaited.begin(), awaited.end(), rank); };
  RankAcceptor acceptor({socket_.get()}, secret_, size - 1);
  while (!awaited.empty()) {
    const Deadline interval(std::min(deadline.Remaining(), kPeerCheckInterval));
    absl::StatusOr<RankAcceptor::Connection> connection = acceptor.Accept(interval);
    if (!connection.ok()) {
      if (KindOf(connection.status()) != ErrorKind::kTimeout) return connection.status();
      if (processes != nullptr) {
        SYNCLINE_RETURN_IF_ERROR(
            processes->Check([&](int rank) { return find(rank) != awaited.end(); }));
      }
      if (check) SYNCLINE_RETURN_IF_ERROR(check());
      if (!deadline.Expired()) continue;
      const absl::Status late = TimeoutError(absl::StrCat(
          base::NameRanks(awaited), " of ", size, " ", Have(awaited),
          " not come for the shared memory within ", absl::FormatDuration(deadline.timeout())));
      return WithRanks(late, awaited);
    }
    const int socket = connection->stream.fd();
    const auto found = find(connection->rank);
    // The hello has proved that the client knows the secret. Closes the connection of others.
    if (found == awaited.end()) {
      const absl::string_view why = WhyImpossible(connection->rank, 0, size);
      acceptor.LogImpossibleClaim(*connection, absl::StrCat("rank ", connection->rank),
                                  why.empty() ? "that rank has come already" : why);
      continue;
    }
    if (!IsOwnUser(socket)) continue;
    if (processes != nullptr) processes->WatchPeerOf(socket, connection->rank);
    if (SendFd(socket, descriptor)) awaited.erase(found);
  }
  return absl::OkStatus();
}

absl::StatusOr<base::UniqueFd> ReceiveFd(absl::string_view endpoint, int rank,
                                         const Deadline& deadline, PeerProcesses* processes) {
  const std::vector<std::string> fields = absl::StrSplit(endpoint, ' ');
  const std::optional<base::SocketAddress> address = AbstractAddress(fields[0]);
  if (fields.size() != 2 || !address.has_value() || fields[1].size() != kHelloSecretSize) {
    return WithRanks(
        BackendError("rank 0's entry in the store does not say where its shared memory is"), {0});
  }
  auto connected = base::Connect(*address, SOCK_SEQPACKET, deadline);
  absl::Status status = connected.status();
  std::optional<Introduction> connection;
  if (status.ok()) {
    if (processes != nullptr) processes->WatchPeerOf(connected->get(), 0);
    auto begun = Introduction::Begin(*std::move(connected), fields[1], rank, deadline);
    status = begun.status();
    if (status.ok()) connection = *std::move(begun);
  }
  if (!status.ok() && KindOf(status) != ErrorKind::kTimeout) {
    const std::string text = absl::StrCat(
        "rank 0: no connection to the socket over which ranks of one host share memory: ",
        status.message());
    if (base::IsOwnShortage(status)) return WithRanks(BackendError(text), {rank});
    return WithRanks(NetworkError(text), {0});  // Rank 0 may have given up.
  }
  if (status.ok()) {
    status = connection->Finish(deadline);
    if (!status.ok() && KindOf(status) != ErrorKind::kTimeout) {
      return WithRanks(NetworkError(absl::StrCat("rank 0 has not handed over its shared memory: ",
                                                 status.message())),
                       {0});
    }
  }
  // Rank 0 serves one rank after another, so this may take until all before have come.
  if (status.ok()) status = base::WaitReadable(connection->socket(), deadline);
  if (!status.ok()) {
    return WithRanks(
        TimeoutError(absl::StrCat("rank 0 has not handed over its shared memory within ",
                                  absl::FormatDuration(deadline.timeout()))),
        {0});
  }
  FdMessage message;
  const ssize_t received =
      recvmsg(connection->socket(), &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* const ancillary = CMSG_FIRSTHDR(&message.header);
  if (received == 1 && (message.header.msg_flags & MSG_CTRUNC) != 0) {
    return WithRanks(BackendError(absl::StrCat("rank ", rank,
                                               " has no descriptor left for the memory that ranks "
                                               "of one host share: raise its limit (ulimit -n)")),
                     {rank});
  }
  if (received != 1 || ancillary == nullptr || ancillary->cmsg_type != SCM_RIGHTS) {
    return WithRanks(NetworkError("rank 0 has gone away before it handed over its shared memory"),
                     {0});
  }
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(ancillary), sizeof(int));
  return base::UniqueFd(descriptor);
}

}  // namespace syncline::backends
