// What other ways to use a TCP connection would bring than those of backend tcp, which calls send
// and recv and looks again and again before it sleeps: io_uring, sending without a copy, options of
// the kernel, and epoll where a process has many connections. Two
// processes in network namespaces, with a core each if there are two. Prints a table: the median of
// kRounds, in which all ways take turns.
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/hosts.h"

namespace syncline::benchmarks {
namespace {

constexpr int kRounds = 5;

enum class Way {
  kPlain,
  kBlocking,
  kUring,
  kZeroCopy,
  kUringZeroCopy,
  kQuickAck,
  kBusyPoll,
  kPoll,
  kEpoll,
};

// Where a process waits for one of many connections.
constexpr int kManyConnections = 256;

struct Measurement {
  const char* name;
  size_t bytes;
  int count;
  bool is_stream;  // Else a ping-pong.
};
constexpr Measurement kMeasurements[] = {{"4 B, round trip, us", 4, 20'000, false},
                                         {"64 KiB, stream, GB/s", 64 << 10, 20'000, true},
                                         {"1 MiB, stream, GB/s", 1 << 20, 2'000, true}};

struct NamedWay {
  const char* name;
  Way way;
};
constexpr NamedWay kWays[] = {{"send and recv, looks again and again", Way::kPlain},
                              {"send and recv, sleeps", Way::kBlocking},
                              {"io_uring, looks again and again", Way::kUring},
                              {"MSG_ZEROCOPY", Way::kZeroCopy},
                              {"io_uring, SEND_ZC", Way::kUringZeroCopy},
                              {"TCP_QUICKACK before each recv, looks again", Way::kQuickAck},
                              {"SO_BUSY_POLL of 50 us, sleeps", Way::kBusyPoll},
                              {"sleeps in poll, for 256", Way::kPoll},
                              {"sleeps in epoll, for 256", Way::kEpoll}};

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

// One operation at a time. See io_uring(7).
class Ring {
 public:
  Ring() {
    io_uring_params parameters = {};
    parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
    fd_ = static_cast<int>(syscall(SYS_io_uring_setup, 8, &parameters));
    if (fd_ < 0) Die("io_uring_setup");
    const size_t size =
        std::max<size_t>(parameters.sq_off.array + parameters.sq_entries * sizeof(uint32_t),
                         parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
    char* const rings = Map(size, IORING_OFF_SQ_RING);
    entries_ = reinterpret_cast<io_uring_sqe*>(
        Map(parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    submitted_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + parameters.sq_off.tail);
    order_ = reinterpret_cast<uint32_t*>(rings + parameters.sq_off.array);
    taken_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + parameters.cq_off.head);
    completed_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + parameters.cq_off.tail);
    completions_ = reinterpret_cast<io_uring_cqe*>(rings + parameters.cq_off.cqes);
    submission_mask_ = parameters.sq_entries - 1;
    completion_mask_ = parameters.cq_entries - 1;
  }

  // Moves all bytes; returns once the memory may be used again.
  void Run(uint8_t opcode, int socket, const char* data, size_t bytes) {
    const uint32_t tail = submitted_->load(std::memory_order_relaxed);
    const uint32_t index = tail & submission_mask_;
    io_uring_sqe& entry = entries_[index];
    entry = {};
    entry.opcode = opcode;
    entry.fd = socket;
    entry.addr = reinterpret_cast<uint64_t>(data);
    entry.len = static_cast<uint32_t>(bytes);
    entry.msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    order_[index] = index;
    submitted_->store(tail + 1, std::memory_order_release);
    Enter(1);
    const io_uring_cqe done = Next();
    if (done.res != static_cast<int>(bytes)) Die("io_uring");
    if ((done.flags & IORING_CQE_F_MORE) != 0) Next();  // The memory is free.
  }

 private:
  char* Map(size_t size, off_t offset) const {
    void* const at =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
    if (at == MAP_FAILED) Die("mmap");
    return static_cast<char*>(at);
  }
  void Enter(unsigned count) const {
    syscall(SYS_io_uring_enter, fd_, count, 0, IORING_ENTER_GETEVENTS, nullptr, 0);
  }
  io_uring_cqe Next() const {
    const uint32_t head = taken_->load(std::memory_order_relaxed);
    while (completed_->load(std::memory_order_acquire) == head) Enter(0);
    const io_uring_cqe completion = completions_[head & completion_mask_];
    taken_->store(head + 1, std::memory_order_release);
    return completion;
  }

  int fd_;
  io_uring_sqe* entries_;
  uint32_t* order_;
  std::atomic<uint32_t>*submitted_, *taken_, *completed_;
  io_uring_cqe* completions_;
  uint32_t submission_mask_, completion_mask_;
};

class Connection {
 public:
  Connection(int socket, Way way)
      : socket_(socket),
        way_(way),
        ring_(way == Way::kUring || way == Way::kUringZeroCopy ? std::make_unique<Ring>()
                                                               : nullptr) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on));
    const int busy_poll_us = 50;
    if (way == Way::kBusyPoll &&
        setsockopt(socket, SOL_SOCKET, SO_BUSY_POLL, &busy_poll_us, sizeof(busy_poll_us)) != 0) {
      Die("SO_BUSY_POLL");
    }
    if (way == Way::kPoll || way == Way::kEpoll) AddIdleNeighbours();
  }

  void Send(const char* data, size_t bytes) {
    if (ring_ != nullptr) {
      return ring_->Run(way_ == Way::kUring ? IORING_OP_SEND : IORING_OP_SEND_ZC, socket_, data,
                        bytes);
    }
    const int flags = MSG_NOSIGNAL | (way_ == Way::kZeroCopy ? MSG_ZEROCOPY : 0);
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = send(socket_, data + done, bytes - done, flags);
      if (count < 0 && errno != ENOBUFS) Die("send");
      if (count > 0) done += count;
      if (count > 0 && way_ == Way::kZeroCopy) ++in_flight_;
    }
    while (in_flight_ > 0) TakeNotices();
  }

  void Receive(char* data, size_t bytes) {
    if (way_ == Way::kUring) return ring_->Run(IORING_OP_RECV, socket_, data, bytes);
    const bool sleeps = way_ == Way::kBlocking || way_ == Way::kBusyPoll;
    const int flags = sleeps ? MSG_WAITALL : MSG_DONTWAIT;
    for (size_t done = 0; done < bytes;) {
      AwaitMore();
      const ssize_t count = recv(socket_, data + done, bytes - done, flags);
      if (count == 0 || (count < 0 && errno != EAGAIN)) Die("recv");
      if (count > 0) done += count;
    }
  }

  // Whether the kernel has copied what it was to send without a copy.
  bool was_copied() const { return was_copied_; }

 private:
  // What a process has that waits for many others, of which this connection's peer alone sends.
  void AddIdleNeighbours() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < kManyConnections; ++i) {
      const int fd = i == kManyConnections / 2 ? socket_ : eventfd(0, EFD_CLOEXEC);
      if (fd < 0) Die("eventfd");
      entries_.push_back({fd, POLLIN, 0});
      epoll_event event = {};
      event.events = EPOLLIN;
      if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) Die("epoll_ctl");
    }
  }

  void AwaitMore() {
    if (way_ == Way::kQuickAck) {
      const int on = 1;
      setsockopt(socket_, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
    }
    if (way_ == Way::kPoll && poll(entries_.data(), entries_.size(), -1) < 1) Die("poll");
    epoll_event event;
    if (way_ == Way::kEpoll && epoll_wait(epoll_, &event, 1, -1) != 1) Die("epoll_wait");
  }

  // That the kernel no longer reads what was sent: the kernel's msg_zerocopy.
  void TakeNotices() {
    char control[128];
    msghdr message = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket_, &message, MSG_ERRQUEUE) < 0) return;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      const auto* const notice = reinterpret_cast<sock_extended_err*>(CMSG_DATA(at));
      in_flight_ -= static_cast<int>(notice->ee_data - notice->ee_info) + 1;
      was_copied_ = was_copied_ || (notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
    }
  }

  const int socket_;
  const Way way_;
  const std::unique_ptr<Ring> ring_;
  std::vector<pollfd> entries_;
  int epoll_ = -1;
  int in_flight_ = 0;
  bool was_copied_ = false;
};

int Connect(int host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, AddressOfHost(0).c_str(), &address.sin_addr);
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  if (host == 0) {
    if (bind(fd, to, sizeof(address)) != 0 || listen(fd, 1) != 0) Die("bind");
    const int connected = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (connected < 0) Die("accept");
    return connected;
  }
  for (int tries = 0; connect(fd, to, sizeof(address)) != 0; ++tries) {
    if (tries == 5'000) Die("connect");
    usleep(1'000);
  }
  return fd;
}

// On host 1, which sends first: seconds for all.
double Move(const Measurement& what, int host, Connection& connection) {
  std::vector<char> data(what.bytes, 1);
  const auto both = [&](int count) {
    for (int i = 0; i < count; ++i) {
      if (host == 1) connection.Send(data.data(), what.bytes);
      if (host == 0) connection.Receive(data.data(), what.bytes);
      if (what.is_stream) continue;
      if (host == 0) connection.Send(data.data(), what.bytes);
      if (host == 1) connection.Receive(data.data(), what.bytes);
    }
    if (!what.is_stream) return;
    char last = 1;
    if (host == 0) connection.Send(&last, 1);
    if (host == 1) connection.Receive(&last, 1);
  };
  both(what.count / 10);
  const auto begin = std::chrono::steady_clock::now();
  both(what.count);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Result {
  double seconds;
  bool was_copied;
};

Result Measure(const Hosts& hosts, const Measurement& what, Way way, int port) {
  int fds[2];
  pid_t pids[2];
  if (pipe(fds) != 0) Die("pipe");
  for (int host = 0; host < 2; ++host) {
    pids[host] = fork();
    if (pids[host] < 0) Die("fork");
    if (pids[host] > 0) continue;
    EnterHost(hosts.door(host));
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(host, &cores);
    sched_setaffinity(0, sizeof(cores), &cores);  // With one core only, both share it.
    Connection connection(Connect(host, port), way);
    Result result = {Move(what, host, connection), connection.was_copied()};
    if (host == 1 && write(fds[1], &result, sizeof(result)) != sizeof(result)) Die("write");
    _exit(0);
  }
  close(fds[1]);
  Result result = {};
  if (read(fds[0], &result, sizeof(result)) != sizeof(result)) Die("read");
  close(fds[0]);
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  return result;
}

int Main(int argc, char** argv) {
  if (const auto status = WorkAsHost(argc, argv)) return *status;
  if (!EnterNewNetwork()) {
    std::fprintf(stderr, "this user may not make network namespaces\n");
    return 1;
  }
  std::map<std::pair<int, int>, std::vector<double>> seconds;  // By way and measurement.
  bool was_copied = false;
  {
    const Hosts hosts(2);
    int port = 20'000;
    for (int round = 0; round < kRounds; ++round) {
      for (size_t m = 0; m < std::size(kMeasurements); ++m) {
        for (size_t w = 0; w < std::size(kWays); ++w) {
          const Result result = Measure(hosts, kMeasurements[m], kWays[w].way, port++);
          seconds[{w, m}].push_back(result.seconds);
          was_copied = was_copied || result.was_copied;
        }
      }
    }
  }
  std::printf("| way |");
  for (const Measurement& what : kMeasurements) std::printf(" %s |", what.name);
  std::printf("\n|---|---|---|---|\n");
  for (size_t w = 0; w < std::size(kWays); ++w) {
    std::printf("| %s |", kWays[w].name);
    for (size_t m = 0; m < std::size(kMeasurements); ++m) {
      std::vector<double>& all = seconds[{w, m}];
      std::sort(all.begin(), all.end());
      const double each = all[all.size() / 2] / kMeasurements[m].count;
      const double bytes = static_cast<double>(kMeasurements[m].bytes);
      std::printf(" %.3g |", kMeasurements[m].is_stream ? bytes / each / 1e9 : each * 1e6);
    }
    std::printf("\n");
  }
  if (was_copied) std::printf("\nWith MSG_ZEROCOPY the kernel copied all the same.\n");
  return 0;
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
