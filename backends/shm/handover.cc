#include "backends/shm/handover.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backends/common/call.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr size_t kSecretDigits = 32;

// How long one that has connected may take to say who it is.
constexpr absl::Duration kPatienceWithOne = absl::Seconds(2);

struct Request {
  char secret[kSecretDigits];
  int32_t rank;
};

absl::Status Failed(absl::string_view what) {
  return BackendError(absl::StrCat(
      "cannot ", what,
      " the socket over which ranks of one host share memory: ", std::strerror(errno)));
}

absl::StatusOr<std::string> RandomDigits() {
  char bytes[kSecretDigits / 2];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return Failed("name");
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

struct Address {
  explicit Address(absl::string_view name) {
    socket.sun_family = AF_UNIX;
    std::memcpy(socket.sun_path + 1, name.data(), name.size());  // After a zero: abstract.
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }

  sockaddr_un socket = {};
  socklen_t length;
};

// Whether there is something to read, or to accept, before the deadline.
bool AwaitReadable(int socket, const Deadline& deadline) {
  while (true) {
    pollfd entry = {socket, POLLIN, 0};
    const auto left = std::min(deadline.Remaining(), absl::Seconds(60));
    if (poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) > 0) return true;
    if (deadline.Expired()) return false;
  }
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
  return sendmsg(connection, &parcel.header, MSG_NOSIGNAL) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoverPoint>> HandoverPoint::Open() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string digits, RandomDigits());
  SYNCLINE_ASSIGN_OR_RETURN(const std::string secret, RandomDigits());
  const std::string name = absl::StrCat("syncline/", digits);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return Failed("open");
  std::unique_ptr<HandoverPoint> point(new HandoverPoint(socket, name, secret));
  const Address address(name);
  if (bind(socket, address.get(), address.length) != 0) return Failed("bind");
  if (listen(socket, SOMAXCONN) != 0) return Failed("listen on");
  return point;
}

HandoverPoint::HandoverPoint(int socket, std::string name, std::string secret)
    : socket_(socket), name_(std::move(name)), secret_(std::move(secret)) {}

HandoverPoint::~HandoverPoint() { close(socket_); }

std::string HandoverPoint::ticket() const { return absl::StrCat(name_, " ", secret_); }

absl::Status HandoverPoint::Serve(int descriptor, int size, const Deadline& deadline) {
  std::vector<int> awaited;
  for (int rank = 1; rank < size; ++rank) awaited.push_back(rank);
  while (!awaited.empty()) {
    if (!AwaitReadable(socket_, deadline)) {
      return TimeoutError(absl::StrCat(NameRanks(awaited), " of ", size, " ", Have(awaited),
                                       " not come for the shared memory within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) continue;
    const absl::Cleanup hang_up = [&] { close(connection); };
    Request request;
    const Deadline soon(std::min(deadline.Remaining(), kPatienceWithOne));
    if (!IsOwnUser(connection) || !AwaitReadable(connection, soon) ||
        recv(connection, &request, sizeof(request), 0) != sizeof(request) ||
        absl::string_view(request.secret, kSecretDigits) != secret_) {
      continue;
    }
    const auto found = std::find(awaited.begin(), awaited.end(), request.rank);
    if (found != awaited.end() && SendDescriptor(connection, descriptor)) awaited.erase(found);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ReceiveDescriptor(absl::string_view ticket, int rank,
                                      const Deadline& deadline) {
  const std::vector<std::string> words = absl::StrSplit(ticket, ' ');
  if (words.size() != 2 || words[0].size() + 1 > sizeof(sockaddr_un::sun_path) ||
      words[1].size() != kSecretDigits) {
    return BackendError("rank 0's entry in the store does not say where its shared memory is");
  }
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connection < 0) return Failed("open");
  const absl::Cleanup hang_up = [&] { close(connection); };
  const Address address(words[0]);
  Request request;
  std::memcpy(request.secret, words[1].data(), kSecretDigits);
  request.rank = rank;
  if (connect(connection, address.get(), address.length) != 0 ||
      send(connection, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) {
    return Annotate(Failed("connect"), "rank 0");
  }
  if (!AwaitReadable(connection, deadline)) {
    return TimeoutError(absl::StrCat("rank 0 has not handed over its shared memory within ",
                                     absl::FormatDuration(deadline.timeout())));
  }
  Parcel parcel;
  const ssize_t received = recvmsg(connection, &parcel.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const beside = CMSG_FIRSTHDR(&parcel.header);
  if (received != 1 || beside == nullptr || beside->cmsg_type != SCM_RIGHTS) {
    return NetworkError("rank 0 has gone away before it handed over its shared memory");
  }
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(beside), sizeof(int));
  return descriptor;
}

}  // namespace syncline
