#include "core/base/listening.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/errno_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

using ::testing::HasSubstr;

constexpr char kVariable[] = "SYNCLINE_PORT_RANGE";

SocketAddress Loopback(int family) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    address.length = sizeof(sockaddr_in6);
    reinterpret_cast<sockaddr_in6*>(address.get())->sin6_addr = in6addr_loopback;
  } else {
    address.length = sizeof(sockaddr_in);
    reinterpret_cast<sockaddr_in*>(address.get())->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

absl::StatusOr<std::optional<PortRange>> RangeOf(const std::optional<std::string>& text) {
  return PortRangeFromEnvironment([&](absl::string_view) { return text; });
}

class ListeningTest : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv(kVariable); }
};

TEST_F(ListeningTest, ReadsRanges) {
  EXPECT_FALSE(RangeOf(std::nullopt)->has_value());
  const auto range = RangeOf("20000-20099");
  ASSERT_TRUE(range.ok() && range->has_value());
  EXPECT_EQ((*range)->first, 20000);
  EXPECT_EQ((*range)->last, 20099);
  EXPECT_TRUE(RangeOf("1-1").ok());
  for (const char* text :
       {"", "20000", "20000-", "-1-5", "5-4", "0-4", "1-65536", "a-b", "1-2-3"}) {
    EXPECT_EQ(KindOf(RangeOf(text).status()), ErrorKind::kArgument) << text;
  }
}

// In a network of its own, where all ports are free.
TEST_F(ListeningTest, TakesEachPortOfTheRangeOnce) {
  setenv(kVariable, "31000-31004", 1);
  std::vector<UniqueFd> listeners;
  std::set<int> ports;
  for (int i = 0; i < 5; ++i) {
    SocketAddress address = Loopback(AF_INET);
    auto listener = ListenOn(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    ports.insert(PortOf(address));
    listeners.push_back(*std::move(listener));
  }
  EXPECT_EQ(ports, (std::set<int>{31000, 31001, 31002, 31003, 31004}));
  SocketAddress address = Loopback(AF_INET);
  const auto none = ListenOn(address);
  EXPECT_EQ(KindOf(none.status()), ErrorKind::kNetwork);
  EXPECT_EQ(ErrnoOf(none.status()), EADDRINUSE);
  EXPECT_THAT(none.status().message(),
              HasSubstr("no port of SYNCLINE_PORT_RANGE (31000-31004) is free"));
  listeners.pop_back();
  EXPECT_TRUE(ListenOn(address).ok());
}

TEST_F(ListeningTest, APortThatIsGivenIsTakenWhateverTheRange) {
  setenv(kVariable, "31000-31000", 1);
  SocketAddress address = Loopback(AF_INET);
  SetPort(address, 31010);
  EXPECT_TRUE(ListenOn(address).ok());
  EXPECT_EQ(PortOf(address), 31010);
  setenv(kVariable, "31000", 1);
  SetPort(address, 0);
  EXPECT_EQ(KindOf(ListenOn(address).status()), ErrorKind::kArgument);
}

TEST_F(ListeningTest, AnAddressOfIPv6HasPortsToo) {
  SocketAddress address = Loopback(AF_INET6);
  const auto listener = ListenOn(address);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_GT(PortOf(address), 0);
}

TEST_F(ListeningTest, AnAddressOfAnotherHostIsAnErrorOfTheKernel) {
  SocketAddress address = Loopback(AF_INET);
  reinterpret_cast<sockaddr_in*>(address.get())->sin_addr.s_addr = inet_addr("192.0.2.1");
  EXPECT_EQ(ErrnoOf(ListenOn(address).status()), EADDRNOTAVAIL);
  setenv(kVariable, "31000-31004", 1);
  EXPECT_EQ(ErrnoOf(ListenOn(address).status()), EADDRNOTAVAIL);
}

}  // namespace
}  // namespace syncline::base
