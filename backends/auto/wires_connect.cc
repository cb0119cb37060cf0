// How wires come about.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/auto/wires.h"
#include "core/hmac.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr size_t kSecretBytes = 16;

// How long one that has connected may take to say who it is.
constexpr absl::Duration kPatienceWithOne = absl::Seconds(2);

// What who connects says first.
struct Hello {
  char secret[2 * kSecretBytes];  // Of the door, in digits.
  int32_t place;
};

absl::Status Failed(absl::string_view what) {
  return NetworkError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

// An address as the kernel knows it.
struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

absl::StatusOr<Address> Parse(const std::string& address, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.c_str(), port.c_str(), &hints, &found); error != 0) {
    return NetworkError(absl::StrCat("address '", address, "': ", gai_strerror(error)));
  }
  Address parsed;
  std::memcpy(&parsed.storage, found->ai_addr, found->ai_addrlen);
  parsed.length = found->ai_addrlen;
  freeaddrinfo(found);
  return parsed;
}

int OpenSocket(const Address& address) {
  return socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

bool AwaitEvent(int socket, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry = {socket, events, 0};
    const auto left = std::min(deadline.Remaining(), absl::Seconds(60));
    if (poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) > 0) return true;
    if (deadline.Expired()) return false;
  }
}

absl::StatusOr<int> ConnectTo(const Wires::Member& member, int place, const Deadline& deadline) {
  const std::vector<std::string> words = absl::StrSplit(member.ticket, ' ');
  Hello hello;
  if (words.size() != 3 || words[2].size() != sizeof(hello.secret)) {
    return NetworkError(absl::StrCat(member.name, " does not say where it listens"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(Address address, Parse(words[0], words[1]));
  const int socket = OpenSocket(address);
  if (socket < 0) return Failed("open a socket");
  absl::Cleanup hang_up = [&] { close(socket); };
  if (connect(socket, address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return Annotate(Failed("connect"), member.name);
    if (!AwaitEvent(socket, POLLOUT, deadline)) {
      return TimeoutError(absl::StrCat("no connection to ", member.name, " within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    if (error != 0) return Annotate(Failed("connect"), member.name);
  }
  std::memcpy(hello.secret, words[2].data(), sizeof(hello.secret));
  hello.place = place;
  if (send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return Annotate(Failed("send"), member.name);
  }
  std::move(hang_up).Cancel();
  return socket;
}

// The place that who has connected says; -1 for strangers.
int PlaceOf(int socket, const WireDoor& door, const Deadline& deadline) {
  Hello hello;
  const Deadline soon(std::min(deadline.Remaining(), kPatienceWithOne));
  for (size_t at = 0; at < sizeof(hello);) {
    if (!AwaitEvent(socket, POLLIN, soon)) return -1;
    const ssize_t got = recv(socket, reinterpret_cast<char*>(&hello) + at, sizeof(hello) - at, 0);
    if (got <= 0) return -1;
    at += got;
  }
  const absl::string_view secret(hello.secret, sizeof(hello.secret));
  return SameBytes(secret, door.secret()) ? hello.place : -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireDoor>> WireDoor::Open(const std::string& address) {
  SYNCLINE_ASSIGN_OR_RETURN(Address own, Parse(address, "0"));
  const int socket = OpenSocket(own);
  if (socket < 0) return Failed("open a socket");
  absl::Cleanup hang_up = [&] { close(socket); };
  if (bind(socket, own.get(), own.length) != 0 || listen(socket, SOMAXCONN) != 0) {
    return Failed(absl::StrCat("listen on address '", address, "'"));
  }
  own.length = sizeof(own.storage);
  char port[NI_MAXSERV] = {};
  if (getsockname(socket, own.get(), &own.length) != 0 ||
      getnameinfo(own.get(), own.length, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) != 0) {
    return Failed("name the socket");
  }
  std::move(hang_up).Cancel();
  return std::unique_ptr<WireDoor>(new WireDoor(socket, address, std::atoi(port)));
}

WireDoor::WireDoor(int socket, std::string address, int port)
    : socket_(socket),
      address_(std::move(address)),
      port_(port),
      secret_(absl::BytesToHexString(RandomBytes(kSecretBytes))) {}

WireDoor::~WireDoor() { close(socket_); }

std::string WireDoor::ticket() const { return absl::StrCat(address_, " ", port_, " ", secret_); }

// Connects to those before this rank on the lane, and waits for those after it. The kernel accepts
// for who is still busy, so none waits for another in a circle.
absl::StatusOr<std::unique_ptr<Wires>> Wires::Connect(const WireDoor& door,
                                                      absl::Span<const Member> members, int place,
                                                      const Deadline& deadline) {
  std::unique_ptr<Wires> wires(new Wires(members.size()));
  std::vector<Link>& links = wires->links_;
  for (size_t i = 0; i < members.size(); ++i) links[i].name = members[i].name;
  for (int to = 0; to < place; ++to) {
    SYNCLINE_ASSIGN_OR_RETURN(links[to].socket, ConnectTo(members[to], place, deadline));
  }
  auto is_awaited = [&](const Link& link) { return link.socket < 0 && &link > &links[place]; };
  while (std::any_of(links.begin(), links.end(), is_awaited)) {
    if (!AwaitEvent(door.socket(), POLLIN, deadline)) {
      std::vector<std::string> late;
      for (const Link& link : links) {
        if (is_awaited(link)) late.push_back(link.name);
      }
      return TimeoutError(absl::StrCat(absl::StrJoin(late, ", "), " did not connect within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    const int socket = accept4(door.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) continue;
    const int from = PlaceOf(socket, door, deadline);
    if (from > place && from < static_cast<int>(links.size()) && links[from].socket < 0) {
      links[from].socket = socket;
    } else {
      close(socket);
    }
  }
  for (const Link& link : links) {
    const int on = 1;
    if (link.socket >= 0) setsockopt(link.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return wires;
}

Wires::~Wires() {
  for (const Link& link : links_) {
    if (link.socket >= 0) close(link.socket);
  }
}

}  // namespace syncline
