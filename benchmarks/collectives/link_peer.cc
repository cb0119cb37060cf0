// What the network between two ranks can do, with no library in between: a plain TCP connection. It
// is the limit of what others reach, as `memory` is within a host. Of two ranks only. send_recv is
// a ping-pong of blocking calls; all_reduce moves as many bytes as one must, in both directions at
// once, and adds nothing up.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmarks/collectives/harness.h"

namespace syncline::benchmarks {
namespace {

absl::Status Failure(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

constexpr int64_t kPiece = 1 << 20;  // Bytes for each system call.

class LinkSystem : public System {
 public:
  LinkSystem(int rank, int socket) : rank_(rank), socket_(socket) {}
  ~LinkSystem() override { close(socket_); }

  std::string Describe() const override { return "a plain TCP connection, C++"; }

  Function Prepare(const Call& call) override {
    const int64_t bytes = call.count * static_cast<int64_t>(sizeof(float));
    const auto output = reinterpret_cast<char*>(call.output);
    switch (call.operation) {
      case Operation::kSendRecv:
        return [this, output, input = reinterpret_cast<char*>(call.input), bytes] {
          const absl::Status first = rank_ == 0 ? Send(input, bytes) : Receive(output, bytes);
          if (!first.ok()) return first;
          return rank_ == 0 ? Receive(output, bytes) : Send(input, bytes);
        };
      case Operation::kAllReduce:
        return AllReduce(call.output, call.count);
      default:
        return nullptr;
    }
  }

 private:
  absl::Status Send(const char* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t sent = send(socket_, data, bytes, MSG_NOSIGNAL);
      if (sent < 0) return Failure("send");
      data += sent;
      bytes -= sent;
    }
    return absl::OkStatus();
  }

  // Looks again and again before it sleeps, as a program would that wants the least latency.
  absl::Status Receive(char* data, int64_t bytes) const {
    const absl::Time sleepy = absl::Now() + absl::Microseconds(50);
    while (bytes > 0) {
      const int flags = absl::Now() < sleepy ? MSG_DONTWAIT : MSG_WAITALL;
      const ssize_t received = recv(socket_, data, bytes, flags);
      if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
      if (received <= 0) return Failure("recv");
      data += received;
      bytes -= received;
    }
    return absl::OkStatus();
  }

  // Sends `bytes` of `data` and receives as many, in both directions at once, into `room` bytes at
  // `received`, over and over.
  absl::Status Exchange(const char* data, int64_t bytes, char* received, int64_t room) const {
    int64_t to_send = bytes, to_receive = bytes;
    while (to_send > 0 || to_receive > 0) {
      pollfd entry = {socket_, 0, 0};
      if (to_send > 0) {
        const ssize_t count = send(socket_, data + (bytes - to_send), std::min(to_send, kPiece),
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) to_send -= count;
        if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return Failure("send");
        if (count < 0) entry.events |= POLLOUT;
      }
      if (to_receive > 0) {
        const int64_t at = (bytes - to_receive) % room;
        const ssize_t count =
            recv(socket_, received + at, std::min({to_receive, kPiece, room - at}), MSG_DONTWAIT);
        if (count > 0) to_receive -= count;
        if (count == 0) return absl::UnavailableError("the other side has gone");
        if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return Failure("recv");
        if (count < 0) entry.events |= POLLIN;
      }
      const bool waits = (to_send == 0 || (entry.events & POLLOUT) != 0) &&
                         (to_receive == 0 || (entry.events & POLLIN) != 0);
      if (waits && entry.events != 0 && poll(&entry, 1, 60'000) <= 0) return Failure("poll");
    }
    return absl::OkStatus();
  }

  // The first call of a turn is checked, so it adds up. The others move the bytes alone: half of a
  // buffer crosses to be reduced and half to be gathered, in each direction.
  Function AllReduce(float* data, int64_t count) const {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    const auto theirs = std::make_shared<std::vector<float>>(count);
    const auto is_first = std::make_shared<bool>(true);
    return [=] {
      const auto* const sent = reinterpret_cast<const char*>(data);
      const auto received = reinterpret_cast<char*>(theirs->data());
      if (!*is_first) return Exchange(sent, bytes, received, std::min(bytes, kPiece));
      *is_first = false;
      const absl::Status status = Exchange(sent, bytes, received, bytes);
      for (int64_t i = 0; i < count; ++i) data[i] += (*theirs)[i];
      return status;
    };
  }

  const int rank_, socket_;
};

// Rank 0 listens, and says where in the group's folder.
absl::StatusOr<int> Connect(const Options& options) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  const std::string path = absl::StrCat(options.folder, "/endpoint");
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failure("socket");
  int connected = fd;
  if (options.rank == 0) {
    inet_pton(AF_INET, options.address.c_str(), &address.sin_addr);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return Failure("bind");
    }
    std::ofstream(path + ".new").write(reinterpret_cast<char*>(&address), sizeof(address));
    std::rename((path + ".new").c_str(), path.c_str());
    pollfd entry = {fd, POLLIN, 0};
    if (poll(&entry, 1, 60'000) != 1) return absl::DeadlineExceededError("rank 1 did not connect");
    connected = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    close(fd);
  } else {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    std::ifstream file(path);
    for (; !file.is_open() && absl::Now() < end; file.open(path)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    file.read(reinterpret_cast<char*>(&address), sizeof(address));
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) return Failure("connect");
  }
  if (connected < 0) return Failure("accept");
  const int on = 1;
  setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return connected;
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.size != 2) {
    return ReportError(options, absl::InvalidArgumentError("a link has two ends"));
  }
  const absl::StatusOr<int> socket = Connect(options);
  if (!socket.ok()) return ReportError(options, socket.status());
  LinkSystem system(options.rank, *socket);
  return Serve(options, system);
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
