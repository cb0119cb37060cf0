// Worlds over several hosts. The test program is its own worker: one process for each host, ranks
// as its threads.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "syncline/world.h"
#include "tests/support/hosts.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kPort = 4711;  // Nobody else is in the namespaces.
// Host 0 has ranks 0 and 1, host 1 has rank 2.
constexpr int kSize = 3;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

// Joins, and says at which address and with which sum.
absl::StatusOr<std::string> Join(const WorldOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
  std::vector<int64_t> sum = {int64_t{1} << world->rank()};
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(Tensor::Of(sum)));
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  return absl::StrCat("sum ", sum[0], " at ", world->group()->options().local_address);
}

// One host. argv: --host number method way door. `method` is an init method or, to make the store
// first and give that, "store". `way` is an address for SYNCLINE_HOST_ADDRESS, or "interface " and
// one for SYNCLINE_SOCKET_IFNAME, if it is not empty.
int HostMain(char** argv) {
  EnterHost(argv[5]);
  const int host = argv[2][0] - '0';
  const std::string method = argv[3];
  const std::string way = argv[4];
  const bool is_interface = absl::StartsWith(way, "interface ");
  if (is_interface) setenv("SYNCLINE_SOCKET_IFNAME", way.substr(10).c_str(), 1);
  if (!is_interface && !way.empty()) setenv("SYNCLINE_HOST_ADDRESS", way.c_str(), 1);
  WorldOptions options;
  options.timeout = kTimeout;
  options.size = kSize;
  if (method == "store") {
    TCPStore::Options store;
    store.host = AddressOfHost(0);
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
    if (host == 0) options.store->Get("host 1 has finished", kTimeout).status().IgnoreError();
    if (host == 1) options.store->Set("host 1 has finished", "").IgnoreError();
  }
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  return 0;
}

class HostsTest : public ::testing::Test {
 protected:
  // What host 0 and host 1 print.
  std::vector<std::string> Run(const std::string& method, bool addresses_are_given) {
    return addresses_are_given ? Run(method, {AddressOfHost(0), AddressOfHost(1)})
                               : Run(method, {"", ""});
  }
  std::vector<std::string> Run(const std::string& method, const std::vector<std::string>& ways) {
    const Hosts hosts(2);
    std::vector<std::unique_ptr<Process>> workers;
    for (int host = 0; host < 2; ++host) {
      workers.push_back(std::make_unique<Process>(std::vector<std::string>{
          "--host", absl::StrCat(host), method, ways[host], hosts.door(host)}));
    }
    return {workers[0]->Output(2 * kTimeout), workers[1]->Output(2 * kTimeout)};
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
  ExpectAllMeet(absl::StrCat("tcp://", AddressOfHost(0), ":", kPort));
}

TEST_F(HostsTest, ByMulticastTheyMeetOnTheInterfaceThatLeadsToTheGroup) {
  ExpectAllMeet(absl::StrCat("tcp://239.255.7.7:", kPort));
}

TEST_F(HostsTest, ByMulticastOfIpv6TheyMeetAtAddressesOfIpv6) {
  if (!std::ifstream("/proc/net/if_inet6").good()) GTEST_SKIP() << "this kernel has no IPv6";
  // By the routes; by the interface's name, which only link-local addresses have of themselves; and
  // a group of the link, of which each interface has one.
  for (const char* group : {"ff15::7:7", "ff15::7:7%cable", "ff12::7:7", "ff12::7:7%cable"}) {
    const auto lines = Run(absl::StrCat("tcp://[", group, "]:", kPort), false);
    EXPECT_EQ(lines[0], "sum 7 at fd00:77::1\nsum 7 at fd00:77::1\n") << group;
    EXPECT_EQ(lines[1], "sum 7 at fd00:77::2\n") << group;
  }
}

TEST_F(HostsTest, AMulticastInterfaceThatThereIsNotIsToldWithThoseThereAre) {
  if (!std::ifstream("/proc/net/if_inet6").good()) GTEST_SKIP() << "this kernel has no IPv6";
  for (const std::string& lines : Run(absl::StrCat("tcp://[ff15::7:7%wire]:", kPort), false)) {
    EXPECT_THAT(lines, AllOf(HasSubstr("no interface 'wire' of this host has an IPv6 address"),
                             HasSubstr("cable"), Not(HasSubstr("sum"))));
  }
}

TEST_F(HostsTest, ThroughAFileTheyMeetAtTheAddressesThatAreGiven) { ExpectAllMeet(file_, true); }

TEST_F(HostsTest, ThroughAFileWithoutAddressesAllAreToldWhatToSet) {
  for (const std::string& lines : Run(file_, false)) {
    EXPECT_THAT(lines, AllOf(HasSubstr("UNAVAILABLE: rank 0 (host "),
                             HasSubstr("the ranks are on several hosts"),
                             HasSubstr("set SYNCLINE_HOST_ADDRESS"), Not(HasSubstr("sum"))));
  }
}

// Its process ends with the store, which the others ask for the reason.
TEST_F(HostsTest, WhatTheHostOfTheStoreLacksAllAreTold) {
  for (int turn = 0; turn < 5; ++turn) {
    for (const std::string& lines :
         Run(absl::StrCat("tcp://", AddressOfHost(0), ":", kPort), {"interface nope", ""})) {
      EXPECT_THAT(lines, AllOf(HasSubstr("UNAVAILABLE: rank 0 (host "),
                               HasSubstr("SYNCLINE_SOCKET_IFNAME is 'nope'")));
    }
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (const auto status = syncline::WorkAsHost(argc, argv)) return *status;
  if (argc == 6 && std::string(argv[1]) == "--host") return syncline::HostMain(argv);
  testing::InitGoogleMock(&argc, argv);
  if (!syncline::EnterNewNetwork() && getuid() != 0) {
    std::puts("skipped: this user may not make network namespaces");
    return 0;
  }
  return RUN_ALL_TESTS();
}
