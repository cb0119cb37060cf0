#include "core/join/init_method.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using ::testing::HasSubstr;

class InitMethodTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  static void Set(const char* name, const char* value) { setenv(name, value, 1); }

  static void ExpectError(const absl::StatusOr<InitMethod>& method, const char* text) {
    ASSERT_FALSE(method.ok());
    EXPECT_EQ(KindOf(method.status()), ErrorKind::kArgument) << method.status();
    EXPECT_THAT(std::string(method.status().message()), HasSubstr(text));
  }

  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "SYNCLINE_STORE",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "SYNCLINE_ROUND",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "PMI_JOBID"};

  // As a launcher does that tells nothing but this.
  static void SetTask(const char* rank, const char* size) {
    Set("PMI_RANK", rank);
    Set("PMI_SIZE", size);
    Set("PMI_JOBID", "17");
  }
};

TEST_F(InitMethodTest, TcpTakesRanksFromTheUrl) {
  auto method = ParseInitMethod("tcp://10.0.0.1:29500?rank=1&world_size=4", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->scheme, "tcp");
  EXPECT_EQ(method->store.host, "10.0.0.1");
  EXPECT_EQ(method->store.port, 29500);
  EXPECT_EQ(method->store.role, StoreConfig::Role::kClient);
  EXPECT_EQ(method->rank, 1);
  EXPECT_EQ(method->size, 4);
}

TEST_F(InitMethodTest, RankZeroHostsTheStore) {
  auto method = ParseInitMethod("tcp://localhost:1", 0, 4);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->store.role, StoreConfig::Role::kServer);
}

TEST_F(InitMethodTest, WithoutARankOneIsToBeAssigned) {
  for (const char* url : {"tcp://host:1?world_size=3", "file:///tmp/x?world_size=3"}) {
    auto method = ParseInitMethod(url, -1, -1);
    ASSERT_TRUE(method.ok()) << method.status();
    EXPECT_EQ(method->rank, -1);
    EXPECT_EQ(method->size, 3);
  }
}

TEST_F(InitMethodTest, EtcdTakesEndpointsAndAPrefix) {
  auto method = ParseInitMethod("etcd://one:2379,two:2380/jobs/7?world_size=3", 1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->scheme, "etcd");
  EXPECT_EQ(method->store.etcd.endpoints, "one:2379,two:2380");
  EXPECT_EQ(method->store.etcd.prefix, "/jobs/7");
  EXPECT_GT(method->store.etcd.ttl, absl::ZeroDuration());
  EXPECT_EQ(method->size, 3);
  for (const char* url : {"etcd://host:2379", "etcd://host:2379/"}) {
    ExpectError(ParseInitMethod(url, 0, 1), "needs a prefix of the job's own");
  }
  ExpectError(ParseInitMethod("etcd://one:2379,two/job", 0, 1), "must be host:port");
}

TEST_F(InitMethodTest, MulticastAddressesAreASchemeOfTheirOwn) {
  auto method = ParseInitMethod("tcp://239.1.2.3:4000?group_name=job&rank=0", -1, 2);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->scheme, kMulticastScheme);
  EXPECT_EQ(method->store.host, "239.1.2.3");
  EXPECT_EQ(method->store.port, 4000);
  EXPECT_EQ(method->group_name, "job");
  EXPECT_EQ(method->rank, 0);
}

TEST_F(InitMethodTest, ALauncherShowsInTheEnvironment) {
  EXPECT_FALSE(HasLauncher());
  Set("MASTER_PORT", "1");
  EXPECT_TRUE(HasLauncher());
}

TEST_F(InitMethodTest, ArgumentsTakePrecedenceOverTheUrl) {
  auto method = ParseInitMethod("file:///tmp/x?rank=1&world_size=4", 2, 3);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->store.path, "/tmp/x");
  EXPECT_EQ(method->rank, 2);
  EXPECT_EQ(method->size, 3);
}

TEST_F(InitMethodTest, Ipv6HostsAreInBrackets) {
  auto method = ParseInitMethod("tcp://[::1]:29500", 1, 2);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->store.host, "::1");
}

TEST_F(InitMethodTest, EnvReadsTheLaunchersVariables) {
  Set("RANK", "3");
  Set("WORLD_SIZE", "8");
  Set("MASTER_ADDR", "node0");
  Set("MASTER_PORT", "29500");
  Set("TORCHELASTIC_RESTART_COUNT", "2");
  auto method = ParseInitMethod("env://", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->scheme, "tcp");
  EXPECT_EQ(method->store.host, "node0");
  EXPECT_EQ(method->store.port, 29500);
  EXPECT_EQ(method->prefix, "attempt/2");
  EXPECT_EQ(method->rank, 3);
  EXPECT_EQ(method->size, 8);
}

TEST_F(InitMethodTest, TheLaunchersStoreIsUsedWhereThereIsOne) {
  Set("RANK", "0");
  Set("WORLD_SIZE", "2");
  Set("SYNCLINE_STORE", "127.0.0.1:4711");
  auto method = ParseInitMethod("env://", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->store.port, 4711);
  EXPECT_EQ(method->store.role, StoreConfig::Role::kClient);
}

TEST_F(InitMethodTest, RoundsOfAnElasticJobAreKeptApart) {
  Set("RANK", "0");
  Set("WORLD_SIZE", "2");
  Set("SYNCLINE_STORE", "127.0.0.1:4711");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->prefix, "attempt/0");
  Set("TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->prefix, "attempt/2");
  Set("SYNCLINE_ROUND", "5");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->prefix, "round/5");
}

TEST_F(InitMethodTest, WhereTorchrunServesTheJobHasAKey) {
  Set("RANK", "0");
  Set("WORLD_SIZE", "2");
  Set("MASTER_ADDR", "node0");
  Set("MASTER_PORT", "29500");
  Set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->store.port, 29500);
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->torchrun_job, "");
  Set("TORCHELASTIC_USE_AGENT_STORE", "True");
  Set("TORCHELASTIC_RUN_ID", "job7");
  Set("TORCHELASTIC_RESTART_COUNT", "2");
  const auto method = ParseInitMethod("env://", -1, -1);
  EXPECT_EQ(method->store.port, 29500);
  EXPECT_EQ(method->torchrun_job, "torchrun/job7/29500/attempt/2");
}

TEST_F(InitMethodTest, AMissingVariableIsNamed) {
  ExpectError(ParseInitMethod("env://", -1, -1), "RANK");
  Set("RANK", "0");
  ExpectError(ParseInitMethod("env://", -1, -1), "WORLD_SIZE");
  Set("WORLD_SIZE", "two");
  ExpectError(ParseInitMethod("env://", -1, -1), "two");
  Set("WORLD_SIZE", "2");
  ExpectError(ParseInitMethod("env://", -1, -1), "MASTER_ADDR");
}

TEST_F(InitMethodTest, ATaskOfALauncherHasItsRankAndSize) {
  SetTask("1", "3");
  auto method = ParseInitMethod("env://", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->scheme, kMpiScheme);
  EXPECT_THAT(method->advice, HasSubstr("Set MASTER_ADDR to the host of rank 0 for all"));
  Set("MASTER_ADDR", "node0");
  method = ParseInitMethod("env://", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->rank, 1);
  EXPECT_EQ(method->size, 3);
  EXPECT_EQ(method->store.host, "node0");
  EXPECT_EQ(method->store.role, StoreConfig::Role::kClient);
  EXPECT_NE(method->store.secret, "");
  EXPECT_THAT(method->from, HasSubstr("PMI_RANK, PMI_SIZE"));
  Set("MASTER_PORT", "4711");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->store.port, 4711);
  Set("PMI_RANK", "0");
  EXPECT_EQ(ParseInitMethod("env://", -1, -1)->store.role, StoreConfig::Role::kServer);
}

TEST_F(InitMethodTest, AUrlWithoutAWorldSizeTakesThatOfTheTask) {
  SetTask("1", "3");
  auto method = ParseInitMethod("file:///tmp/x", -1, -1);
  ASSERT_TRUE(method.ok()) << method.status();
  EXPECT_EQ(method->rank, 1);
  EXPECT_EQ(method->size, 3);
  EXPECT_EQ(ParseInitMethod("file:///tmp/x?world_size=5", -1, -1)->rank, -1);
}

TEST_F(InitMethodTest, WhatContradictsTheTaskIsRefusedWithBoth) {
  SetTask("1", "3");
  ExpectError(ParseInitMethod("env://", 0, -1), "rank is 0, but PMI says 1 (PMI_RANK)");
  ExpectError(ParseInitMethod("env://", -1, 2), "world_size is 2, but PMI says 3 (PMI_SIZE)");
  ExpectError(ParseInitMethod("file:///tmp/x?rank=2", -1, -1), "rank is 2, but PMI says 1");
  Set("WORLD_SIZE", "1");
  ExpectError(ParseInitMethod("env://", -1, -1), "WORLD_SIZE is 1, but PMI says 3");
  EXPECT_TRUE(ParseInitMethod("tcp://host:1", 0, 2).ok());  // Whole without the task.
}

TEST_F(InitMethodTest, ATaskThatIsHalfDescribedIsRefused) {
  Set("PMI_SIZE", "2");
  ExpectError(ParseInitMethod("env://", -1, -1), "PMI_RANK is not set");
}

TEST_F(InitMethodTest, BadUrlsAreRefusedWithTheReason) {
  ExpectError(ParseInitMethod("somewhere", 0, 1), "not a URL");
  ExpectError(ParseInitMethod("zk://a:1", 0, 1), "unknown init method");
  ExpectError(ParseInitMethod("tcp://host", 0, 1), "host:port");
  ExpectError(ParseInitMethod("tcp://host:0", 0, 1), "1 to 65535");
  ExpectError(ParseInitMethod("tcp://host:70000", 0, 1), "1 to 65535");
  ExpectError(ParseInitMethod("file://tmp/x", 0, 1), "absolute path");
  ExpectError(ParseInitMethod("tcp://host:1?rnak=1", 0, 1), "rnak");
  ExpectError(ParseInitMethod("tcp://host:1?rank=x", -1, 1), "'x'");
  ExpectError(ParseInitMethod("tcp://host:1?rank=4294967296", -1, 1), "not '4294967296'");
  ExpectError(ParseInitMethod("tcp://host:1", -1, -1), "needs world_size");
  ExpectError(ParseInitMethod("file:///tmp/x?rank=0", -1, -1), "needs world_size");
  ExpectError(ParseInitMethod("file:///tmp/x", -1, 0), "not in a world of 0");
  ExpectError(ParseInitMethod("tcp://host:1", 2, 2), "rank 2 is not in a world of 2");
}

}  // namespace
}  // namespace syncline::join
