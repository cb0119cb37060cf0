#include "core/join/host_address.h"

#include "gtest/gtest.h"

namespace syncline::join {
namespace {

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

}  // namespace
}  // namespace syncline::join
