#include "tests/support/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "syncline/deadline.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kKeeper[] = "--keep-host";
constexpr char kCable[] = "cable";  // The host's end of it.

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
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

std::string AsBytes(int32_t number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}
std::string AsText(const std::string& text) { return {text.c_str(), text.size() + 1}; }

void Require(int error, const char* what) {
  if (error == 0) return;
  errno = error;
  Die(what);
}

Request NewLink() {
  Request request(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK);
  request.Append(ifinfomsg{});
  return request;
}

void MakeSwitch(const std::string& name) {
  Request request = NewLink();
  request.Attribute(IFLA_IFNAME, AsText(name));
  const size_t info = request.Begin(IFLA_LINKINFO);
  request.Attribute(IFLA_INFO_KIND, "bridge");
  request.End(info);
  Require(request.Send(), "making a switch");
}

// From the switch `network`, where its end is called `port`, to the namespace of `keeper`.
void LayCable(const std::string& network, const std::string& port, pid_t keeper) {
  Request request = NewLink();
  request.Attribute(IFLA_IFNAME, AsText(port));
  request.Attribute(IFLA_MASTER, AsBytes(static_cast<int32_t>(if_nametoindex(network.c_str()))));
  const size_t info = request.Begin(IFLA_LINKINFO);
  request.Attribute(IFLA_INFO_KIND, "veth");
  const size_t data = request.Begin(IFLA_INFO_DATA);
  const size_t peer = request.Begin(VETH_INFO_PEER);
  request.Append(ifinfomsg{});
  request.Attribute(IFLA_IFNAME, AsText(kCable));
  request.Attribute(IFLA_NET_NS_PID, AsBytes(keeper));
  request.End(peer);
  request.End(data);
  request.End(info);
  Require(request.Send(), "laying a cable");
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
  for (const Deadline deadline(kTimeout); !deadline.Expired();) {
    const std::string its = network(absl::StrCat(process));
    if (!its.empty() && its != own) return;
    absl::SleepFor(absl::Milliseconds(1));
  }
  Die("a host has no network of its own");
}

void AwaitInterface(const std::string& interface) {
  for (const Deadline deadline(kTimeout); if_nametoindex(interface.c_str()) == 0;) {
    if (deadline.Expired()) Die(interface.c_str());
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Waits for an interface, gives it an address, if that is not empty, and switches it on.
void SwitchOn(const std::string& interface, const std::string& address) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  AwaitInterface(interface);
  if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) Die(interface.c_str());
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

// Before the interface is on, so that whoever finds it on finds the address. Without a search for
// others that have it, which would take a second. A kernel without IPv6 gives none.
void AddIpv6Address(const std::string& interface, const std::string& address) {
  in6_addr bytes = {};
  if (inet_pton(AF_INET6, address.c_str(), &bytes) != 1) Die(address.c_str());
  Request request(RTM_NEWADDR, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK);
  ifaddrmsg message = {};
  message.ifa_family = AF_INET6;
  message.ifa_prefixlen = 64;
  message.ifa_flags = IFA_F_NODAD;
  message.ifa_index = if_nametoindex(interface.c_str());
  request.Append(message);
  request.Attribute(IFA_LOCAL, {reinterpret_cast<const char*>(&bytes), sizeof(bytes)});
  const int error = request.Send();
  if (error != EAFNOSUPPORT && error != EOPNOTSUPP) Require(error, "adding an IPv6 address");
}

void RemoveLink(const std::string& name) {
  Request request(RTM_DELLINK, NLM_F_REQUEST | NLM_F_ACK);
  request.Append(ifinfomsg{});
  request.Attribute(IFLA_IFNAME, AsText(name));
  Require(request.Send(), "removing a link");
}

// Until the keeper has switched it on.
void AwaitCable() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  ifreq request = {};
  std::strncpy(request.ifr_name, kCable, IFNAMSIZ - 1);
  for (const Deadline deadline(kTimeout); !deadline.Expired();) {
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0) return;
    absl::SleepFor(absl::Milliseconds(1));
  }
  Die("the host's cable");
}

// The request of a queue of `kind`, without its options, for what is sent by an interface.
Request NewQueue(const std::string& interface, const std::string& kind) {
  Request request(RTM_NEWQDISC, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK);
  tcmsg message = {};
  message.tcm_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  message.tcm_parent = TC_H_ROOT;
  request.Append(message);
  request.Attribute(TCA_KIND, AsText(kind));
  return request;
}

}  // namespace

bool EnterNewNetwork() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const std::string uid = absl::StrCat(getuid()), gid = absl::StrCat(getgid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")) &&
         WriteFile("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
}

std::string AddressOfHost(int host) { return absl::StrCat("10.77.0.", host + 1); }

std::string Ipv6AddressOfHost(int host) { return absl::StrCat("fd00:77::", absl::Hex(host + 1)); }

std::optional<int> WorkAsHost(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != kKeeper) return std::nullopt;
  if (unshare(CLONE_NEWNET) != 0) Die("unshare");
  const int host = std::atoi(argv[2]);
  SwitchOn("lo", "");
  AwaitInterface(kCable);
  AddIpv6Address(kCable, Ipv6AddressOfHost(host));
  SwitchOn(kCable, AddressOfHost(host));
  while (true) pause();
}

Hosts::Hosts(int count) {
  static std::atomic<int> made{0};
  switch_ = absl::StrCat("switch", made++);
  MakeSwitch(switch_);
  SwitchOn(switch_, "");
  for (int host = 0; host < count; ++host) {
    keepers_.push_back(
        std::make_unique<Process>(std::vector<std::string>{kKeeper, absl::StrCat(host)}));
    AwaitNetwork(keepers_.back()->pid());
    LayCable(switch_, PortOf(host), keepers_.back()->pid());
    SwitchOn(PortOf(host), "");
  }
}

std::string Hosts::PortOf(size_t host) const { return absl::StrCat(switch_, ".", host); }

// Cables would go with the last process of a host only.
Hosts::~Hosts() {
  for (size_t host = 0; host < keepers_.size(); ++host) RemoveLink(PortOf(host));
  RemoveLink(switch_);
}

void Hosts::CutOff(int host) const {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  ifreq request = {};
  std::strncpy(request.ifr_name, PortOf(host).c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) Die("reading a port's state");
  request.ifr_flags = static_cast<short>(request.ifr_flags & ~IFF_UP);
  if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) Die("switching a port off");
}

// Where the switch sends to the host.
void Hosts::LoseTo(int host) const {
  Request request = NewQueue(PortOf(host), "blackhole");
  Require(request.Send(), "losing what is sent to a host");
}

// A token bucket where the switch sends to the host. It has room for a few of the kernel's largest
// segments, and the queue before it for some milliseconds: as switches have.
void Hosts::LimitRate(int host, int megabits) const {
  const uint64_t bytes_a_second = uint64_t{1'000'000} / 8 * megabits;
  constexpr uint32_t kBurst = 256 << 10;
  tc_tbf_qopt options = {};
  options.rate.rate = static_cast<uint32_t>(std::min<uint64_t>(bytes_a_second, UINT32_MAX));
  options.rate.linklayer = TC_LINKLAYER_ETHERNET;
  options.limit = static_cast<uint32_t>(kBurst + bytes_a_second / 200);
  Request request = NewQueue(PortOf(host), "tbf");
  const size_t attributes = request.Begin(TCA_OPTIONS);
  request.Attribute(TCA_TBF_PARMS, {reinterpret_cast<const char*>(&options), sizeof(options)});
  request.Attribute(TCA_TBF_BURST, AsBytes(kBurst));
  request.End(attributes);
  Require(request.Send(), "limiting a cable's rate");
}

std::string Hosts::door(int host) const {
  return absl::StrCat("/proc/", keepers_[host]->pid(), "/ns/net");
}

void EnterHost(const std::string& door) {
  const int fd = open(door.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) Die(door.c_str());
  close(fd);
  AwaitCable();
}

}  // namespace syncline
