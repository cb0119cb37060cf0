// The proxy of etcd_testing.h.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "store/etcd/etcd_testing.h"

namespace syncline::etcd_store {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

LossyProxy::LossyProxy(int server_port)
    : server_port_(server_port),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      wakeup_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("proxy");
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

LossyProxy::~LossyProxy() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  eventfd_write(wakeup_, 1);
  thread_.join();
  close(listener_);
  close(wakeup_);
}

std::string LossyProxy::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

void LossyProxy::Set(Mode mode) {
  absl::MutexLock lock(&mutex_);
  mode_ = mode;
  if (mode == Mode::kSwallow) return;
  must_break_ = true;
  eventfd_write(wakeup_, 1);
  const auto broken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !must_break_; };
  mutex_.Await(absl::Condition(&broken));
}

void LossyProxy::Run() {
  while (true) {
    std::vector<pollfd> fds = {{wakeup_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& [client, server] : pairs_) {
      fds.push_back({client, POLLIN, 0});
      fds.push_back({server, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), -1);
    Mode mode;
    {
      absl::MutexLock lock(&mutex_);
      eventfd_t ignored;
      if (fds[0].revents != 0) eventfd_read(wakeup_, &ignored);
      if (closing_ || must_break_) CloseAll();
      must_break_ = false;
      if (closing_) return;
      mode = mode_;
    }
    if (pairs_.size() * 2 + 2 != fds.size()) continue;
    for (size_t i = pairs_.size(); i-- > 0;) {
      const auto [client, server] = pairs_[i];
      const bool lives =
          (fds[2 * i + 2].revents == 0 || Forward(client, server, true)) &&
          (fds[2 * i + 3].revents == 0 || Forward(server, client, mode != Mode::kSwallow));
      if (lives) continue;
      close(client);
      close(server);
      pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (fds[1].revents != 0) {
      Accept();
      if (mode == Mode::kRefuse) CloseAll();
    }
  }
}

void LossyProxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    pairs_.emplace_back(client, server);
    return;
  }
  close(server);
  close(client);
}

// Moves what there is, or drops it; false at the end of the connection.
bool LossyProxy::Forward(int from, int to, bool keeps) {
  char buffer[1 << 16];
  const ssize_t got = recv(from, buffer, sizeof(buffer), 0);
  if (got <= 0) return false;
  ssize_t sent = keeps ? 0 : got;
  while (sent < got) {
    const ssize_t n = send(to, buffer + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += n;
  }
  return true;
}

void LossyProxy::CloseAll() {
  for (const auto& [client, server] : pairs_) {
    close(client);
    close(server);
  }
  pairs_.clear();
}

}  // namespace syncline::etcd_store
