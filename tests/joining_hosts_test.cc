// Worlds over several hosts, each a network namespace with one end of a cable between them. The
// test program is its own worker: one process for each host, ranks as its threads.
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/deadline.h"
#include "core/status.h"
#include "core/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/tcp_store.h"
#include "tests/processes.h"
#include "tests/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kCable[] = "cable";
constexpr int kPort = 4711;  // Nobody else is in the namespaces.
// Host 0 has ranks 0 and 1, host 1 has rank 2.
constexpr int kSize = 3;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

std::string AddressOf(int host) { return absl::StrCat("10.77.0.", host + 1); }

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// Makes this process the administrator of a network namespace of its own.
bool EnterNewNetwork() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const std::string uid = absl::StrCat(getuid()), gid = absl::StrCat(getgid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")) &&
         WriteFile("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
}

// A request to the kernel: a header with attributes, which may contain attributes.
class Request {
 public:
  Request(uint16_t type, uint16_t flags) : bytes_(NLMSG_LENGTH(0), '\0') {
    header().nlmsg_type = type;
    header().nlmsg_flags = flags;
  }

  template <typename T>
  void Append(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }
  size_t Begin(uint16_t type) {
    const size_t at = bytes_.size();
    rtattr attribute = {};
    attribute.rta_type = type;
    Append(attribute);
    return at;
  }
  void End(size_t at) {
    reinterpret_cast<rtattr*>(&bytes_[at])->rta_len = static_cast<uint16_t>(bytes_.size() - at);
  }
  void Attribute(uint16_t type, const std::string& value) {
    const size_t at = Begin(type);
    bytes_ += value;
    End(at);
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }

  // The kernel's answer: 0 or an errno.
  int Send() {
    header().nlmsg_len = static_cast<uint32_t>(bytes_.size());
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) return errno;
    const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
    struct {
      nlmsghdr header;
      nlmsgerr error;
      char quoted[4096];
    } answer;
    if (send(fd, bytes_.data(), bytes_.size(), 0) < 0) return errno;
    if (recv(fd, &answer, sizeof(answer), 0) < 0) return errno;
    return answer.header.nlmsg_type == NLMSG_ERROR ? -answer.error.error : EPROTO;
  }

 private:
  nlmsghdr& header() { return *reinterpret_cast<nlmsghdr*>(&bytes_[0]); }

  std::string bytes_;
};

std::string AsBytes(pid_t pid) { return {reinterpret_cast<const char*>(&pid), sizeof(pid)}; }

// Connects the namespaces of two processes.
void LayCable(pid_t one, pid_t other) {
  Request request(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK);
  request.Append(ifinfomsg{});
  request.Attribute(IFLA_IFNAME, std::string(kCable, sizeof(kCable)));
  request.Attribute(IFLA_NET_NS_PID, AsBytes(one));
  const size_t info = request.Begin(IFLA_LINKINFO);
  request.Attribute(IFLA_INFO_KIND, "veth");
  const size_t data = request.Begin(IFLA_INFO_DATA);
  const size_t peer = request.Begin(VETH_INFO_PEER);
  request.Append(ifinfomsg{});
  request.Attribute(IFLA_IFNAME, std::string(kCable, sizeof(kCable)));
  request.Attribute(IFLA_NET_NS_PID, AsBytes(other));
  request.End(peer);
  request.End(data);
  request.End(info);
  const int error = request.Send();
  ASSERT_EQ(error, 0) << std::strerror(error);
}

// Waits until `process` is in a network namespace of its own.
void AwaitNetwork(pid_t process) {
  const auto network = [](const std::string& pid) {
    char link[64] = {};
    return readlink(absl::StrCat("/proc/", pid, "/ns/net").c_str(), link, sizeof(link) - 1) > 0
               ? std::string(link)
               : std::string();
  };
  const std::string own = network("self");
  for (const Deadline deadline(kPatience); !deadline.Expired();) {
    const std::string its = network(absl::StrCat(process));
    if (!its.empty() && its != own) return;
    absl::SleepFor(absl::Milliseconds(1));
  }
  FAIL() << "process " << process << " has no network of its own";
}

// In the worker: waits for an interface, gives it an address and switches it on.
void SwitchOn(const char* interface, const std::string& address) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  for (const Deadline deadline(kPatience); ioctl(fd, SIOCGIFFLAGS, &request) != 0;) {
    if (deadline.Expired()) Die(interface);
    absl::SleepFor(absl::Milliseconds(1));
  }
  const short flags = request.ifr_flags;
  auto set = [&](unsigned long what, const std::string& to) {
    uint8_t parts[4];
    if (std::sscanf(to.c_str(), "%hhu.%hhu.%hhu.%hhu", &parts[0], &parts[1], &parts[2],
                    &parts[3]) != 4) {
      Die("address");
    }
    sockaddr_in in = {};
    in.sin_family = AF_INET;
    std::memcpy(&in.sin_addr, parts, sizeof(parts));
    std::memcpy(&request.ifr_addr, &in, sizeof(in));
    if (ioctl(fd, what, &request) != 0) Die(to.c_str());
  };
  if (!address.empty()) {
    set(SIOCSIFADDR, address);
    set(SIOCSIFNETMASK, "255.255.255.0");
  }
  request.ifr_flags = static_cast<short>(flags | IFF_UP);
  if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) Die("switching on");
  close(fd);
}

// Joins, and says at which address and with which sum.
absl::StatusOr<std::string> Join(const WorldOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
  std::vector<int64_t> sum = {int64_t{1} << world->rank()};
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(Tensor::Of(sum)));
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  return absl::StrCat("sum ", sum[0], " at ", world->group()->options().local_address);
}

// One host. argv: --host number method address. `method` is an init method or, to make the store
// first and give that, "store". `address` is for SYNCLINE_HOST_ADDRESS, if it is not empty.
int HostMain(char** argv) {
  if (unshare(CLONE_NEWNET) != 0) Die("unshare");
  const int host = argv[2][0] - '0';
  const std::string method = argv[3];
  SwitchOn("lo", "");
  SwitchOn(kCable, AddressOf(host));
  if (argv[4][0] != '\0') setenv("SYNCLINE_HOST_ADDRESS", argv[4], 1);
  WorldOptions options;
  options.timeout = kPatience;
  options.size = kSize;
  if (method == "store") {
    TCPStore::Options store;
    store.host = AddressOf(0);
    store.port = kPort;
    store.role = host == 0 ? StoreConfig::Role::kServer : StoreConfig::Role::kClient;
    auto made = TCPStore::Create(store);
    if (!made.ok()) Die(made.status().ToString().c_str());
    options.store = *std::move(made);
  } else {
    options.init_method = method;
  }
  std::vector<std::string> lines(host == 0 ? 2 : 1);
  RunRanks(static_cast<int>(lines.size()), [&](int i) -> absl::Status {
    WorldOptions mine = options;
    mine.rank = host == 0 ? i : 2;
    const auto text = Join(mine);
    lines[i] = text.ok() ? *text : text.status().ToString();
    return absl::OkStatus();
  });
  if (method == "store") {  // Its host stays until the others have finished.
    if (host == 0) options.store->Get("host 1 has finished", kPatience).status().IgnoreError();
    if (host == 1) options.store->Set("host 1 has finished", "").IgnoreError();
  }
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  // Its end would take the cable away, and with it the other host's address: the test ends both.
  close(STDOUT_FILENO);
  while (true) pause();
}

class HostsTest : public ::testing::Test {
 protected:
  // What host 0 and host 1 print.
  std::vector<std::string> Run(const std::string& method, bool addresses_are_given) {
    std::vector<std::unique_ptr<Process>> hosts;
    for (int host = 0; host < 2; ++host) {
      hosts.push_back(std::make_unique<Process>(std::vector<std::string>{
          "--host", absl::StrCat(host), method, addresses_are_given ? AddressOf(host) : ""}));
      AwaitNetwork(hosts.back()->pid());
    }
    LayCable(hosts[0]->pid(), hosts[1]->pid());
    return {hosts[0]->Output(2 * kPatience), hosts[1]->Output(2 * kPatience)};
  }

  void ExpectAllMeet(const std::string& method, bool addresses_are_given = false) {
    const auto lines = Run(method, addresses_are_given);
    EXPECT_EQ(lines[0], "sum 7 at 10.77.0.1\nsum 7 at 10.77.0.1\n");
    EXPECT_EQ(lines[1], "sum 7 at 10.77.0.2\n");
  }

  const ScratchFolder folder_;
  const std::string file_ = absl::StrCat("file://", folder_.path(), "/store");
};

TEST_F(HostsTest, ThroughAStoreThatIsGivenTheyMeetOnTheInterfaceThatLeadsToIt) {
  ExpectAllMeet("store");
}

TEST_F(HostsTest, ThroughTcpTheyMeetOnTheInterfaceThatLeadsToTheStore) {
  ExpectAllMeet(absl::StrCat("tcp://", AddressOf(0), ":", kPort));
}

TEST_F(HostsTest, ThroughAFileTheyMeetAtTheAddressesThatAreGiven) { ExpectAllMeet(file_, true); }

TEST_F(HostsTest, ThroughAFileWithoutAddressesAllAreToldWhatToSet) {
  for (const std::string& lines : Run(file_, false)) {
    EXPECT_THAT(lines, AllOf(HasSubstr("UNAVAILABLE: rank 0 (host "),
                             HasSubstr("the ranks are on several hosts"),
                             HasSubstr("set SYNCLINE_HOST_ADDRESS"), Not(HasSubstr("sum"))));
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--host") return syncline::HostMain(argv);
  testing::InitGoogleMock(&argc, argv);
  if (!syncline::EnterNewNetwork() && getuid() != 0) {
    std::puts("skipped: this user may not make network namespaces");
    return 0;
  }
  return RUN_ALL_TESTS();
}
