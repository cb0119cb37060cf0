#include "core/join/host_address.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "core/testing/log_lines.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/peer.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HostAddressTest, WhatOnlyItsOwnHostReachesIsLoopback) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", "::"}) {
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
  }
  for (const char* address : {"10.0.0.1", "128.0.0.1", "fe80::1%eth0", "2001:db8::1", "", "host"}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  }
}

TEST(HostAddressTest, TheHostOfAnAddressIsWhatComesBeforeThePort) {
  EXPECT_EQ(HostOf("10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(HostOf("node-7:4711"), "node-7");
  EXPECT_EQ(HostOf("[2001:db8::1]:4711"), "2001:db8::1");
  EXPECT_EQ(HostOf(""), "");
  EXPECT_EQ(HostOf("node-7"), "");
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::vector<Peer> TwoHosts() {
  std::vector<Peer> peers(2);
  peers[0].host = peers[1].host = "localhost";
  peers[0].identity = "a";
  peers[1].identity = "b";
  return peers;
}

TEST(HostAddressTest, TheLoopbackAmongOthersIsLeftOut) {
  // A host without another interface has none to choose, as in a sandbox.
  const Environment all("SYNCLINE_SOCKET_IFNAME", "127.0.0.0/8,0.0.0.0/0,::/0");
  const auto chosen = ChosenInterfaceAddresses();
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_TRUE(IsLoopbackAddress(chosen->front()));
  EXPECT_TRUE(MoreAddresses(chosen->front()).empty());
  for (const std::string& address : *chosen) {
    if (IsLoopbackAddress(address)) continue;
    const std::vector<std::string> more = MoreAddresses(address);
    for (const std::string& other : more) EXPECT_FALSE(IsLoopbackAddress(other)) << other;
    break;
  }
}

TEST(HostAddressTest, AnInterfaceThatIsMissingAmongOthersIsNamedOnce) {
  const LogLines lines;
  const Environment environment("SYNCLINE_SOCKET_IFNAME", "lo,no_such_interface");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ChosenInterfaceAddresses().ok());
  EXPECT_EQ(lines.text(),
            "SYNCLINE_SOCKET_IFNAME is 'lo,no_such_interface', and this host has no interface "
            "no_such_interface that is up: only the others are used\n");
}

TEST(HostAddressTest, TheLoopbackIsNoInterfaceForOtherHosts) {
  for (const char* variable : {"SYNCLINE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const Environment environment(variable, "lo");
    const absl::Status status = AddressOfThisHost(TwoHosts(), 0, "").status();
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(variable), HasSubstr("'lo', which is 127.0.0.1")));
  }
}

TEST(HostAddressTest, OurVariableCountsBeforeGloos) {
  const Environment ours("SYNCLINE_SOCKET_IFNAME", "no_such_interface");
  const Environment theirs("GLOO_SOCKET_IFNAME", "lo");
  const absl::Status status = AddressOfThisHost(TwoHosts(), 0, "").status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("SYNCLINE_SOCKET_IFNAME is 'no_such_interface'"),
                    HasSubstr("lo (127.0.0.1)")));
}

TEST(HostAddressTest, AnAddressThatIsGivenCountsBeforeAnInterface) {
  const Environment interface("SYNCLINE_SOCKET_IFNAME", "no_such_interface");
  const Environment address("SYNCLINE_HOST_ADDRESS", "192.0.2.7");
  EXPECT_EQ(AddressOfThisHost(TwoHosts(), 0, "").value_or("none"), "192.0.2.7");
}

TEST(HostAddressTest, OnOneHostNoInterfaceIsNeeded) {
  const Environment interface("SYNCLINE_SOCKET_IFNAME", "no_such_interface");
  EXPECT_EQ(AddressOfThisHost(std::vector<Peer>(2), 0, "").value_or("none"), "127.0.0.1");
}

}  // namespace
}  // namespace syncline::join
