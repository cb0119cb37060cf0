// Where ranks meet when torchrun's own store has MASTER_PORT, with ranks as threads.
#include "core/join/torchrun_store.h"

#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/listening.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The loopback is this test's own, and nobody has these ports.
constexpr int kMasterPort = 20000;
constexpr char kJob[] = "torchrun/job/20000/attempt/1";
constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

StoreConfig Config(StoreConfig::Role role) {
  StoreConfig config;
  config.host = "127.0.0.1";
  config.port = kMasterPort;
  config.role = role;
  config.timeout = kTimeout;
  return config;
}

absl::StatusOr<OpenedStore> Serve(const std::string& job = kJob) {
  return OpenTorchrunStore(Config(StoreConfig::Role::kServer), job, Deadline(kTimeout));
}

absl::StatusOr<OpenedStore> Find(absl::Duration timeout = kTimeout) {
  return OpenTorchrunStore(Config(StoreConfig::Role::kClient), kJob, Deadline(timeout));
}

int PortOf(const Store& store) {
  const std::string text = store.ToString();
  return std::atoi(text.substr(text.rfind(':') + 1).c_str());
}

// Takes the port, and accepts nobody. Without `listen` connections are refused.
base::UniqueFd Take(int port, bool listen) {
  base::SocketAddress address = base::Resolve("127.0.0.1", {port})->front();
  if (listen) return *base::ListenOn(address, /*takes_ipv4=*/false);
  base::UniqueFd fd = *base::OpenSocket(address.family(), SOCK_STREAM);
  EXPECT_EQ(bind(fd.get(), address.get(), address.length), 0);
  return fd;
}

TEST(TorchrunStoreTest, PortsFollowMasterPortWhileThereAreSome) {
  EXPECT_THAT(TorchrunPorts(kMasterPort),
              ElementsAre(20001, 20002, 20003, 20004, 20005, 20006, 20007, 20008));
  EXPECT_EQ(TorchrunPorts(65527).back(), 65535);
  EXPECT_EQ(TorchrunPorts(65528).front(), 65527);
  EXPECT_EQ(TorchrunPorts(65535).front(), 65534);
}

TEST(TorchrunStoreTest, RanksPassByOtherListeners) {
  const base::UniqueFd silent = Take(20001, /*listen=*/true);
  const base::UniqueFd outgoing = Take(20002, /*listen=*/false);
  const auto of_another_attempt = Serve("torchrun/job/20000/attempt/0");
  ASSERT_TRUE(of_another_attempt.ok()) << of_another_attempt.status();
  EXPECT_EQ(PortOf(*of_another_attempt->store), 20003);
  StoreConfig guarded = Config(StoreConfig::Role::kServer);
  guarded.secret = "of another user";
  const auto of_another_user = OpenTorchrunStore(guarded, kJob, Deadline(kTimeout));
  ASSERT_TRUE(of_another_user.ok()) << of_another_user.status();
  EXPECT_EQ(PortOf(*of_another_user->store), 20004);

  const auto served = Serve();
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->role, StoreConfig::Role::kServer);
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->role, StoreConfig::Role::kClient);
  EXPECT_EQ(found->host, "127.0.0.1");
  ASSERT_TRUE(served->store->Set("key", "value").ok());
  EXPECT_EQ(*found->store->Get("key", kTimeout), "value");
  EXPECT_EQ(PortOf(*found->store), 20005);
}

TEST(TorchrunStoreTest, RankZeroMayComeLast) {
  absl::StatusOr<OpenedStore> found = absl::UnknownError("");
  std::thread client([&found] { found = Find(); });
  absl::SleepFor(absl::Milliseconds(300));
  const auto served = Serve();
  client.join();
  ASSERT_TRUE(served.ok()) << served.status();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(PortOf(*found->store), 20001);
}

TEST(TorchrunStoreTest, ThatRankZeroDoesNotComeIsAnErrorInTime) {
  absl::StatusOr<OpenedStore> found = Find(absl::Milliseconds(300));
  EXPECT_EQ(KindOf(found.status()), ErrorKind::kNetwork);
  EXPECT_THAT(Message(found.status()),
              AllOf(HasSubstr("300ms"), HasSubstr("ports 20001 to 20008 of 127.0.0.1"),
                    HasSubstr("nobody listens there"), HasSubstr("rank 0")));
  const base::UniqueFd silent = Take(20001, /*listen=*/true);
  const Deadline deadline(absl::Seconds(10));
  found = Find(absl::Milliseconds(500));
  EXPECT_EQ(KindOf(found.status()), ErrorKind::kNetwork);
  EXPECT_THAT(Message(found.status()), HasSubstr("port 20001: "));
  EXPECT_FALSE(deadline.Expired());
}

// A rank with another secret sees the job's store among strangers.
TEST(TorchrunStoreTest, TheErrorSaysOfEachListenerWhyItWasPassedBy) {
  const base::UniqueFd silent = Take(20001, /*listen=*/true);
  StoreConfig guarded = Config(StoreConfig::Role::kServer);
  guarded.secret = "the job's";
  const auto served = OpenTorchrunStore(guarded, kJob, Deadline(kTimeout));
  ASSERT_TRUE(served.ok()) << served.status();
  const auto of_another = Serve("torchrun/another");
  ASSERT_TRUE(of_another.ok()) << of_another.status();
  const auto found = Find(absl::Seconds(3));
  EXPECT_EQ(KindOf(found.status()), ErrorKind::kNetwork);
  EXPECT_THAT(Message(found.status()),
              AllOf(HasSubstr("port 20001: "), HasSubstr("port 20002: "),
                    HasSubstr("SYNCLINE_SECRET_FILE must name the job's secret file"),
                    HasSubstr("port 20003: the store of another job")));
}

TEST(TorchrunStoreTest, AMistakeInThisProcessIsAnErrorAtOnce) {
  ASSERT_EQ(setenv("SYNCLINE_SECRET_FILE", "/nonexistent", 1), 0);
  const auto found = Find(absl::InfiniteDuration());
  ASSERT_EQ(unsetenv("SYNCLINE_SECRET_FILE"), 0);
  EXPECT_THAT(Message(found.status()), HasSubstr("/nonexistent"));
}

// Its other ranks would find that one. So it is after a torchrun that was killed, if its workers
// still run; and in a process that has kept its first world.
TEST(TorchrunStoreTest, AStoreOfAnEarlierStartOfTheJobIsAnError) {
  const base::UniqueFd stranger = Take(20001, /*listen=*/true);
  const auto earlier = Serve();
  ASSERT_TRUE(earlier.ok()) << earlier.status();
  const auto served = Serve();
  EXPECT_EQ(KindOf(served.status()), ErrorKind::kNetwork);
  EXPECT_THAT(Message(served.status()),
              AllOf(HasSubstr("port 20002 of 127.0.0.1"), HasSubstr("--master-port")));
}

// "localhost" is 127.0.0.1 and ::1 on most hosts, and a client tries one of them first.
TEST(TorchrunStoreTest, APortOfWhichAnotherHasOneAddressIsTaken) {
  const auto addresses = base::Resolve("localhost", {20001});
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  for (base::SocketAddress address : *addresses) {
    const auto taken = base::ListenOn(address, /*takes_ipv4=*/false);
    if (!taken.ok()) continue;  // There is no IPv6.
    StoreConfig config = Config(StoreConfig::Role::kServer);
    config.host = "localhost";
    const auto served = OpenTorchrunStore(config, kJob, Deadline(kTimeout));
    ASSERT_TRUE(served.ok()) << served.status();
    EXPECT_EQ(PortOf(*served->store), 20002);
  }
}

TEST(TorchrunStoreTest, ThatAllPortsAreTakenIsAnError) {
  std::vector<base::UniqueFd> taken;
  for (const int port : TorchrunPorts(kMasterPort)) taken.push_back(Take(port, /*listen=*/true));
  const auto served = Serve();
  EXPECT_EQ(KindOf(served.status()), ErrorKind::kNetwork);
  EXPECT_THAT(Message(served.status()),
              AllOf(HasSubstr("other processes have all ports 20001 to 20008 of 127.0.0.1"),
                    HasSubstr("--master-port")));
}

}  // namespace
}  // namespace syncline::join
