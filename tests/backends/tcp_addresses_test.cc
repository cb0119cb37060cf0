// Backend tcp over IPv6, at ports of a range, and with certificates for its addresses.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "backends/tcp/tcp_backend.h"
#include "core/testing/tls_environment.h"
#include "core/tls/certificates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/hash_store.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ResultOf;

constexpr int kRanks = 3;
constexpr absl::Duration kTimeout = absl::Seconds(60);

CallContext Within(uint64_t sequence) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(kTimeout);
  return context;
}

BackendConfig ConfigOf(const std::shared_ptr<Store>& store, int rank, int size,
                       const std::string& address) {
  BackendConfig config = OnLoopback(store, rank, size, kTimeout);
  config.local_address = address;
  return config;
}

// Joins ranks at `address`, and has them make a short and a long collective and pass a message on.
// `check` runs on each rank once it has joined. Each has the addresses `more`, too.
std::vector<absl::Status> RunAt(
    const std::string& address, const std::function<void()>& check = [] {},
    const std::vector<std::string>& more = {}) {
  const auto store = std::make_shared<HashStore>();
  return RunRanks(kRanks, [&](int rank) -> absl::Status {
    BackendConfig config = ConfigOf(store, rank, kRanks, address);
    config.more_addresses = more;
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, BackendRegistry::Make("tcp", config));
    check();
    for (const size_t count : {size_t{1}, size_t{300'000}}) {
      std::vector<int32_t> values(count, rank + 1);
      SYNCLINE_RETURN_IF_ERROR(
          backend
              ->RunAndWait(Collective::AllReduce(Tensor::Of(values), ReduceOp::kSum), Within(count))
              .status());
      EXPECT_EQ(values, std::vector<int32_t>(count, 6));
      std::vector<int32_t> received(count);
      const int next = (rank + 1) % kRanks, last = (rank + kRanks - 1) % kRanks;
      values.assign(count, rank);
      const auto send = [&] {
        return backend->RunAndWait(Collective::Send(Tensor::Of(values), next), Within(count))
            .status();
      };
      const auto receive = [&] {
        return backend->RunAndWait(Collective::Recv(Tensor::Of(received), last), Within(count))
            .status();
      };
      SYNCLINE_RETURN_IF_ERROR(rank == 0 ? send() : receive());
      SYNCLINE_RETURN_IF_ERROR(rank == 0 ? receive() : send());
      EXPECT_EQ(received, std::vector<int32_t>(count, last));
    }
    return absl::OkStatus();
  });
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(TcpAddressesTest, RanksMeetOverIPv6) { ExpectAllOk(RunAt("::1")); }

TEST(TcpAddressesTest, CertificatesForAddressesNeedNoOtherName) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    const TlsEnvironment environment({{address}});
    environment.Set(tls::Mode::kCertificates);
    ExpectAllOk(RunAt(address));
  }
  const TlsEnvironment elsewhere({{"10.0.0.7"}});
  elsewhere.Set(tls::Mode::kCertificates);
  const std::vector<absl::Status> refused = RunAt("127.0.0.1");
  for (const absl::Status& status : refused) EXPECT_FALSE(status.ok());
  // Rank 0 gives up with whichever comes first, and then refuses the other's connection.
  EXPECT_THAT(refused, Contains(ResultOf(
                           [](const absl::Status& status) { return std::string(status.message()); },
                           HasSubstr("it is not for '127.0.0.1'"))));
}

// How many sockets of this process have connections from `address`.
int ConnectionsAt(const std::string& address) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in own = {}, other = {};
    socklen_t size = sizeof(own), other_size = sizeof(other);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
        own.sin_family != AF_INET ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &own.sin_addr, text, sizeof(text));
    if (text == address) ++count;
  }
  return count;
}

TEST(TcpAddressesTest, EachInterfaceHasItsStream) {
  std::atomic<int> least{INT_MAX};
  ExpectAllOk(RunAt("127.0.0.1",
                    [&] { least = std::min(least.load(), ConnectionsAt("127.0.0.3")); },
                    {"127.0.0.2", "127.0.0.3"}));
  // All ranks are threads of this process, and none joins before its last connection is made.
  EXPECT_GE(least, 2);
}

TEST(TcpAddressesTest, ARankWithFewerAddressesTakesAsManyStreams) {
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(2, [&](int rank) -> absl::Status {
    BackendConfig config = ConfigOf(store, rank, 2, "127.0.0.1");
    if (rank == 1) config.more_addresses = {"127.0.0.2"};
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, BackendRegistry::Make("tcp", config));
    std::vector<int32_t> values(1'000'000, rank + 1);
    SYNCLINE_RETURN_IF_ERROR(
        backend->RunAndWait(Collective::AllReduce(Tensor::Of(values), ReduceOp::kSum), Within(1))
            .status());
    EXPECT_EQ(values, std::vector<int32_t>(values.size(), 3));
    return absl::OkStatus();
  }));
}

TEST(TcpAddressesTest, AnAddressThatIsNotOfThisHostIsToldToAll) {
  for (const absl::Status& status : RunAt("127.0.0.1", [] {}, {"192.0.2.1"})) {
    EXPECT_THAT(status.message(), HasSubstr("cannot listen on address '192.0.2.1'"));
  }
}

TEST(TcpAddressesTest, StreamsAreTheSameOnAllRanks) {
  setenv("SYNCLINE_TCP_STREAMS", "4", 1);
  ExpectAllOk(RunAt("127.0.0.1"));
  for (const char* wrong : {"0", "17", "two", ""}) {
    setenv("SYNCLINE_TCP_STREAMS", wrong, 1);
    for (const absl::Status& status : RunAt("127.0.0.1")) {
      EXPECT_THAT(status.message(), HasSubstr("SYNCLINE_TCP_STREAMS must be a number")) << wrong;
    }
  }
  // Rank 0 has read its own by the time it says so.
  setenv("SYNCLINE_TCP_STREAMS", "2", 1);
  const auto store = std::make_shared<HashStore>();
  const auto join = [&](int rank) {
    return tcp::TcpBackend::Make(ConfigOf(store, rank, 2, "127.0.0.1")).status();
  };
  absl::Status first;
  std::thread rank_0([&] { first = join(0); });
  while (store->Keys("")->empty()) absl::SleepFor(absl::Milliseconds(1));
  unsetenv("SYNCLINE_TCP_STREAMS");
  const absl::Status second = join(1);
  rank_0.join();
  for (const absl::Status& status : {first, second}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(status.message(), HasSubstr("SYNCLINE_TCP_STREAMS must be the same on all ranks: "
                                            "it is 2 for rank 0"));
    EXPECT_THAT(status.message(), HasSubstr("not set for rank 1"));
  }
}

// How many connections of this process have `value` as an option of theirs.
int ConnectionsWith(int level, int option, int value) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage other = {};
    socklen_t length = sizeof(other);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &length) != 0) continue;
    int found = -1;
    length = sizeof(found);
    if (getsockopt(fd, level, option, &found, &length) == 0 && found == value) ++count;
  }
  return count;
}

TEST(TcpAddressesTest, OptionsAreThoseOfAllConnections) {
  setenv("SYNCLINE_SOCKET_DSCP", "46", 1);
  setenv("SYNCLINE_SOCKET_BUFFER", "65536", 1);
  setenv("SYNCLINE_SOCKET_BUSY_POLL", "0", 1);
  setenv("SYNCLINE_TCP_CONGESTION", "reno", 1);  // Of every kernel.
  // A rank that has joined has a connection for messages and one for collectives to each other.
  const int least = 2 * (kRanks - 1);
  ExpectAllOk(RunAt("127.0.0.1", [&] {
    EXPECT_GE(ConnectionsWith(IPPROTO_IP, IP_TOS, 46 << 2), least);
    EXPECT_GE(ConnectionsWith(SOL_SOCKET, SO_RCVBUF, 2 * 65536), least);  // The kernel doubles it.
    EXPECT_GE(ConnectionsWith(SOL_SOCKET, SO_SNDBUF, 2 * 65536), least);
    int reno;
    std::memcpy(&reno, "reno", sizeof(reno));
    EXPECT_GE(ConnectionsWith(IPPROTO_TCP, TCP_CONGESTION, reno), least);
  }));
  ExpectAllOk(
      RunAt("::1", [&] { EXPECT_GE(ConnectionsWith(IPPROTO_IPV6, IPV6_TCLASS, 46 << 2), least); }));
  setenv("SYNCLINE_TCP_CONGESTION", "no such", 1);
  for (const absl::Status& status : RunAt("127.0.0.1")) {
    EXPECT_THAT(status.message(), HasSubstr("the kernel refuses SYNCLINE_TCP_CONGESTION=no such"));
    EXPECT_THAT(status.message(), AllOf(HasSubstr("; it has "), HasSubstr("reno")));
  }
  unsetenv("SYNCLINE_TCP_CONGESTION");
  const struct {
    const char *variable, *wrong;
  } kWrong[] = {{"SYNCLINE_SOCKET_DSCP", "64"},
                {"SYNCLINE_SOCKET_BUFFER", "4M"},
                {"SYNCLINE_SOCKET_BUFFER", "0"},
                {"SYNCLINE_SOCKET_BUSY_POLL", "-1"}};
  for (const auto& [variable, wrong] : kWrong) {
    setenv(variable, wrong, 1);
    for (const absl::Status& status : RunAt("127.0.0.1")) {
      EXPECT_THAT(status.message(), HasSubstr(std::string(variable) + " must be a number from"));
    }
    unsetenv(variable);
  }
}

TEST(TcpAddressesTest, ABufferThatTheKernelMakesSmallerIsReportedWithItsLimit) {
  setenv("SYNCLINE_SOCKET_BUFFER", "1073741824", 1);  // No kernel's limit is as high.
  absl::Mutex mutex;
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, absl::string_view line) {
    absl::MutexLock lock(&mutex);
    lines.emplace_back(line);
  });
  ExpectAllOk(RunAt("127.0.0.1"));
  SetLogSink(nullptr);
  unsetenv("SYNCLINE_SOCKET_BUFFER");
  EXPECT_THAT(lines, Contains(HasSubstr("the limit of net.core.rmem_max")));
  EXPECT_THAT(lines, Contains(HasSubstr("the limit of net.core.wmem_max")));
}

TEST(TcpAddressesTest, ListenersAreAtPortsOfTheRange) {
  setenv("SYNCLINE_PORT_RANGE", "32000-32031", 1);
  for (int i = 0; i < 3; ++i) {
    ExpectAllOk(RunAt("127.0.0.1", [] {
      // Those of ranks that are still joining.
      for (const int port : ListeningPorts()) {
        EXPECT_GE(port, 32000);
        EXPECT_LE(port, 32031);
      }
    }));
  }
  setenv("SYNCLINE_PORT_RANGE", "32000", 1);
  for (const absl::Status& status : RunAt("127.0.0.1")) {
    EXPECT_THAT(status.message(), HasSubstr("SYNCLINE_PORT_RANGE must be two ports"));
  }
  unsetenv("SYNCLINE_PORT_RANGE");
}

}  // namespace
}  // namespace syncline
