#include "launch/monitor/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/sockets.h"
#include "launch/monitor/metrics.h"
#include "launch/monitor/status_json.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr int kBacklog = 64;
constexpr absl::Duration kAcceptPause = absl::Seconds(1);  // When descriptors have run out.
constexpr absl::string_view kPlain = "text/plain; charset=utf-8";
constexpr char kEndOfHeaders[] = "\r\n\r\n";

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

std::string Response(absl::string_view status, absl::string_view type, absl::string_view body,
                     absl::string_view method) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n",
                      absl::StartsWith(status, "405") ? "Allow: GET, HEAD\r\n" : "", "\r\n",
                      method == "HEAD" ? "" : body);
}

// Whether `host` is a public DNS name. With DNS rebinding an attacker lets his name resolve to
// 127.0.0.1, so that a browser on this host sends requests here with that name. An address is not
// such a name, nor is one without a dot, such as localhost.
bool MayBeStrangers(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return false;  // IPv6.
  host = host.substr(0, host.find(':'));
  in_addr address;
  return absl::StrContains(host, '.') &&
         inet_pton(AF_INET, std::string(host).c_str(), &address) != 1;
}

// The header's value; empty if there is none.
absl::string_view Header(absl::string_view request, absl::string_view name) {
  const absl::string_view headers = request.substr(0, request.find(kEndOfHeaders));
  for (const absl::string_view line : absl::StrSplit(headers, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(parts.first, name)) return absl::StripAsciiWhitespace(parts.second);
  }
  return "";
}

absl::Status ListenError(int port, absl::string_view what) {
  return NetworkError(absl::StrCat("--metrics-port: port ", port, " of 127.0.0.1 cannot be ", what,
                                   ": ", std::strerror(errno),
                                   ". Give another one, or 0 for one that is free"));
}

}  // namespace

struct MetricsServer::Client {
  Client(base::UniqueFd fd, absl::Time deadline) : fd(std::move(fd)), deadline(deadline) {}

  const base::UniqueFd fd;
  const absl::Time deadline;
  enum class State { kReading, kWriting, kDraining } state = State::kReading;
  std::string request;
  std::string response;
  size_t written = 0;
};

MetricsServer::MetricsServer(base::UniqueFd listener, int port, Snapshot snapshot,
                             const Clock& clock)
    : listener_(std::move(listener)), port_(port), snapshot_(std::move(snapshot)), clock_(clock) {}

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(int port, Snapshot snapshot,
                                                                    const Clock& clock) {
  base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  // Connections of an earlier launcher that linger do not keep the port from the next one.
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return ListenError(port, "taken");
  }
  if (listen(listener.get(), kBacklog) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ListenError(port, "listened at");
  }
  return absl::WrapUnique(
      new MetricsServer(std::move(listener), ntohs(address.sin_port), std::move(snapshot), clock));
}

std::string MetricsServer::url() const {
  return absl::StrCat("http://127.0.0.1:", port_, "/metrics");
}

bool MetricsServer::CanAccept() const {
  return clients_.size() < kMaxClients && clock_.Now() >= accept_after_;
}

void MetricsServer::AddTo(std::vector<pollfd>* fds) const {
  if (CanAccept()) fds->push_back({listener_.get(), POLLIN, 0});
  for (const auto& client : clients_) {
    const bool writes = client->state == Client::State::kWriting;
    fds->push_back({client->fd.get(), static_cast<int16_t>(writes ? POLLOUT : POLLIN), 0});
  }
}

absl::Time MetricsServer::deadline() const {
  absl::Time first =
      clock_.Now() < accept_after_ ? accept_after_ : absl::Time(absl::InfiniteFuture());
  for (const auto& client : clients_) first = std::min(first, client->deadline);
  return first;
}

void MetricsServer::Handle(const std::vector<pollfd>& fds) {
  const auto ready = [&fds](int fd) {
    return std::any_of(fds.begin(), fds.end(),
                       [fd](const pollfd& each) { return each.fd == fd && each.revents != 0; });
  };
  const absl::Time now = clock_.Now();
  const auto is_done = [&](const std::unique_ptr<Client>& client) {
    return now >= client->deadline || (ready(client->fd.get()) && !Serve(*client));
  };
  clients_.erase(std::remove_if(clients_.begin(), clients_.end(), is_done), clients_.end());
  if (ready(listener_.get())) Accept();
}

void MetricsServer::Accept() {
  while (CanAccept()) {
    absl::StatusOr<base::UniqueFd> fd = base::TryAccept(listener_.get());
    if (!fd.ok()) {
      // Without a descriptor for it the connection stays, and poll() would return at once.
      accept_after_ = clock_.Now() + kAcceptPause;
      return;
    }
    if (!fd->valid()) return;
    clients_.push_back(std::make_unique<Client>(*std::move(fd), clock_.Now() + kTimeout));
    if (!Serve(*clients_.back())) clients_.pop_back();  // Most requests are there already.
  }
}

bool MetricsServer::Serve(Client& client) {
  if (client.state == Client::State::kReading && !ReadRequest(client)) return false;
  if (client.state == Client::State::kWriting && !WriteResponse(client)) return false;
  return client.state != Client::State::kDraining || Drain(client);
}

bool MetricsServer::ReadRequest(Client& client) {
  char buffer[4096];
  const ssize_t size = recv(client.fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size < 0) return WouldBlock() || errno == EINTR;
  if (size == 0) return false;
  client.request.append(buffer, static_cast<size_t>(size));
  const size_t end = client.request.find(kEndOfHeaders);
  if (end != std::string::npos && end <= kMaxRequest) {
    client.response = Respond(client.request, snapshot_);
  } else if (client.request.size() > kMaxRequest) {
    client.response = Response("431 Request Header Fields Too Large", kPlain, "too long\n", "");
  } else {
    return true;
  }
  client.state = Client::State::kWriting;
  return true;
}

bool MetricsServer::WriteResponse(Client& client) {
  while (client.written < client.response.size()) {
    const ssize_t size = send(client.fd.get(), client.response.data() + client.written,
                              client.response.size() - client.written, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return WouldBlock();
    client.written += static_cast<size_t>(size);
  }
  // Closed with bytes unread, the connection would be reset, and the response lost with it.
  shutdown(client.fd.get(), SHUT_WR);
  client.state = Client::State::kDraining;
  return true;
}

bool MetricsServer::Drain(Client& client) {
  char buffer[4096];
  const ssize_t size = recv(client.fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  return size > 0 || (size < 0 && (WouldBlock() || errno == EINTR));
}

std::string MetricsServer::Respond(absl::string_view request, const Snapshot& snapshot) {
  const absl::string_view line = request.substr(0, request.find("\r\n"));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
    return Response("400 Bad Request", kPlain, "this is not HTTP/1.x\n", "");
  }
  const absl::string_view method = words[0];
  if (method != "GET" && method != "HEAD") {
    return Response("405 Method Not Allowed", kPlain, "only GET and HEAD\n", method);
  }
  if (MayBeStrangers(Header(request, "host"))) {
    return Response("421 Misdirected Request", kPlain,
                    "ask for localhost or an address; a proxy must send such a Host header\n",
                    method);
  }
  const absl::string_view path = words[1].substr(0, words[1].find('?'));
  if (path == "/metrics") {
    return Response("200 OK", kMetricsContentType, FormatMetrics(snapshot()), method);
  }
  if (path == "/status") {
    return Response("200 OK", "application/json", absl::StrCat(ToJson(snapshot()), "\n"), method);
  }
  if (path == "/healthz") return Response("200 OK", kPlain, "ok\n", method);
  return Response("404 Not Found", kPlain, "there are /metrics, /status and /healthz\n", method);
}

}  // namespace syncline::launch
