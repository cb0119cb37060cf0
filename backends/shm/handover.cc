#include "backends/shm/handover.h"

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
#include "backends/common/call.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/sockets.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// How often to look whether a rank that is awaited has died.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);

absl::Status Failed(absl::string_view what) {
  return BackendError(absl::StrCat(
      "cannot ", what,
      " the socket over which ranks of one host share memory: ", std::strerror(errno)));
}

// The address of `name` in the abstract name space. Nothing if the name is too long.
std::optional<SocketAddress> AbstractAddress(absl::string_view name) {
  sockaddr_un address = {};
  if (name.size() + 1 > sizeof(address.sun_path)) return std::nullopt;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // After a zero: abstract.
  SocketAddress result;
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

// A message of one byte with the descriptor beside it, or room for one. See cmsg(3).
struct Parcel {
  Parcel() {
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

bool SendDescriptor(int connection, int descriptor) {
  Parcel parcel;
  cmsghdr* const beside = CMSG_FIRSTHDR(&parcel.header);
  beside->cmsg_level = SOL_SOCKET;
  beside->cmsg_type = SCM_RIGHTS;
  beside->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(beside), &descriptor, sizeof(int));
  return sendmsg(connection, &parcel.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoverPoint>> HandoverPoint::Open() {
  const std::string name = absl::StrCat("syncline/", NewHelloSecret());  // As hard to guess.
  const SocketAddress address = *AbstractAddress(name);
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, OpenSocket(AF_UNIX, SOCK_SEQPACKET));
  if (bind(socket.get(), address.get(), address.length) != 0) return Failed("bind");
  if (listen(socket.get(), SOMAXCONN) != 0) return Failed("listen on");
  return std::unique_ptr<HandoverPoint>(new HandoverPoint(std::move(socket), name));
}

HandoverPoint::HandoverPoint(UniqueFd socket, std::string name)
    : socket_(std::move(socket)), name_(std::move(name)), secret_(NewHelloSecret()) {}

std::string HandoverPoint::ticket() const { return absl::StrCat(name_, " ", secret_); }

absl::Status HandoverPoint::Serve(int descriptor, int size, const Deadline& deadline,
                                  PeerWatchdog* watchdog) {
  std::vector<int> awaited;
  for (int rank = 1; rank < size; ++rank) awaited.push_back(rank);
  const auto find = [&](int rank) { return std::find(awaited.begin(), awaited.end(), rank); };
  RankAcceptor acceptor(socket_.get(), secret_, size - 1);
  while (!awaited.empty()) {
    const Deadline interval(std::min(deadline.Remaining(), kWatchInterval));
    absl::StatusOr<RankAcceptor::Connection> connection = acceptor.Accept(interval);
    if (!connection.ok()) {
      if (KindOf(connection.status()) != ErrorKind::kTimeout) return connection.status();
      if (watchdog != nullptr) {
        SYNCLINE_RETURN_IF_ERROR(
            watchdog->Check([&](int rank) { return find(rank) != awaited.end(); }));
      }
      if (!deadline.Expired()) continue;
      return TimeoutError(absl::StrCat(NameRanks(awaited), " of ", size, " ", Have(awaited),
                                       " not come for the shared memory within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    const int socket = connection->socket.get();
    const auto found = find(connection->rank);
    if (found == awaited.end() || !IsOwnUser(socket)) continue;
    if (watchdog != nullptr) watchdog->WatchPeerOf(socket, connection->rank);
    if (SendDescriptor(socket, descriptor)) awaited.erase(found);
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ReceiveDescriptor(absl::string_view ticket, int rank,
                                           const Deadline& deadline, PeerWatchdog* watchdog) {
  const std::vector<std::string> words = absl::StrSplit(ticket, ' ');
  const std::optional<SocketAddress> address = AbstractAddress(words[0]);
  if (words.size() != 2 || !address.has_value() || words[1].size() != kHelloSecretSize) {
    return BackendError("rank 0's entry in the store does not say where its shared memory is");
  }
  const auto connection = Connect(*address, SOCK_SEQPACKET, deadline);
  absl::Status status = connection.status();
  if (status.ok()) {
    if (watchdog != nullptr) watchdog->WatchPeerOf(connection->get(), 0);
    status = SendHello(connection->get(), words[1], rank, deadline);
  }
  if (!status.ok() && KindOf(status) != ErrorKind::kTimeout) {
    return BackendError(absl::StrCat(
        "rank 0: no connection to the socket over which ranks of one host share memory: ",
        status.message()));
  }
  if (status.ok()) status = WaitReadable(connection->get(), deadline);
  if (!status.ok()) {
    return TimeoutError(absl::StrCat("rank 0 has not handed over its shared memory within ",
                                     absl::FormatDuration(deadline.timeout())));
  }
  Parcel parcel;
  const ssize_t received =
      recvmsg(connection->get(), &parcel.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* const beside = CMSG_FIRSTHDR(&parcel.header);
  if (received != 1 || beside == nullptr || beside->cmsg_type != SCM_RIGHTS) {
    return NetworkError("rank 0 has gone away before it handed over its shared memory");
  }
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(beside), sizeof(int));
  return UniqueFd(descriptor);
}

}  // namespace syncline
