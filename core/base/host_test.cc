#include "core/base/host.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

using ::testing::HasSubstr;

TEST(HostTest, APeerSurvivesTheTripThroughAStore) {
  const Peer self = IdentifyThisProcess().value();
  auto peer = Peer::Parse(self.Serialize());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->host, self.host);
  EXPECT_EQ(peer->identity, self.identity);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_THAT(self.identity, HasSubstr("net:["));
}

TEST(HostTest, WhatDescribesNoProcessIsAStoreError) {
  for (const char* text : {"", "12", "x y z"}) {
    EXPECT_EQ(KindOf(Peer::Parse(text).status()), ErrorKind::kStore) << text;
  }
}

TEST(HostTest, LoopbackIsReachedThroughLoopback) {
  EXPECT_EQ(AddressTowards("127.0.0.1").value(), "127.0.0.1");
}

TEST(HostTest, ANameHasAFirstAddress) {
  EXPECT_EQ(FirstAddress("127.0.0.1").value(), "127.0.0.1");
  EXPECT_TRUE(FirstAddress("localhost").ok());
  EXPECT_EQ(KindOf(FirstAddress("no-such-host.invalid").status()), ErrorKind::kNetwork);
}

TEST(HostTest, MulticastAddressesAreKnown) {
  for (const char* text : {"224.0.0.1", "239.1.2.3", "ff02::1", "ff02::1%eth0"}) {
    EXPECT_TRUE(IsMulticastAddress(text)) << text;
  }
  for (const char* text : {"223.255.255.255", "240.0.0.1", "::1", "239.1.2", "localhost", ""}) {
    EXPECT_FALSE(IsMulticastAddress(text)) << text;
  }
}

TEST(HostTest, AHostThatDoesNotResolveIsNamed) {
  absl::Status status = AddressTowards("no-such-host.invalid").status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace syncline::base
