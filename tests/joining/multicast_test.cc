// Discovery by multicast, with processes as threads. Over loopback alone.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/join/multicast_announcement.h"
#include "core/join/multicast_discovery.h"
#include "core/join/multicast_socket.h"
#include "core/testing/tls_environment.h"
#include "core/tls/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "syncline/tensor.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using join::DiscoverStoreByMulticast;
using join::kProcessIdBytes;
using join::MulticastAnnouncement;
using join::MulticastOptions;
using join::MulticastSocket;
using join::OpenedStore;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kGroup[] = "239.255.7.8";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class MulticastTest : public ::testing::Test {
 protected:
  join::MulticastOptions At(int size, int rank = -1) const {
    join::MulticastOptions options;
    options.group = kGroup;
    options.port = port_;
    options.job = "job";
    options.rank = rank;
    options.size = size;
    options.store_timeout = absl::Seconds(10);
    return options;
  }

  MulticastSocket Socket() const { return MulticastSocket::Open(kGroup, port_).value(); }

  // What a process of `job` that does not exist any more would have said.
  static join::MulticastAnnouncement Ghost(int size, int rank) {
    join::MulticastAnnouncement ghost;
    ghost.job = "job";
    ghost.size = size;
    ghost.rank = rank;
    ghost.id = std::string(kProcessIdBytes, '\0');  // Lower than any that is drawn.
    ghost.view = ghost.id;
    ghost.peer = base::IdentifyThisProcess().value();
    return ghost;
  }

  // Waits until a process of the job announces itself.
  static void AwaitAnnouncement(const MulticastSocket& socket) {
    while (true) {
      auto datagram = socket.Receive(kTimeout);
      ASSERT_TRUE(datagram.ok() && datagram->has_value());
      if (MulticastAnnouncement::Open((*datagram)->bytes, "").ok()) return;
    }
  }

  // All meet, in one store that one of them hosts; the hosts' numbers.
  void ExpectOneStoreEach(const std::vector<MulticastOptions>& options) {
    std::vector<OpenedStore> opened(options.size());
    for (const absl::Status& status : RunRanks(options.size(), [&](int i) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(opened[i],
                                     DiscoverStoreByMulticast(options[i], Deadline(kTimeout)));
           return absl::OkStatus();
         })) {
      ASSERT_TRUE(status.ok()) << status;
    }
    std::map<std::string, std::set<std::string>> stores;  // By job.
    std::map<std::string, int> hosts;
    for (size_t i = 0; i < options.size(); ++i) {
      stores[options[i].job].insert(opened[i].store->address());
      EXPECT_EQ(opened[i].host, "127.0.0.1") << "all are on this host";
      if (opened[i].role != StoreConfig::Role::kServer) continue;
      ++hosts[options[i].job];
      host_ = options[i].rank;
    }
    std::set<std::string> all;
    for (const auto& [job, addresses] : stores) {
      EXPECT_EQ(addresses.size(), 1u) << job;
      EXPECT_EQ(hosts[job], 1) << job;
      all.insert(addresses.begin(), addresses.end());
    }
    EXPECT_EQ(all.size(), stores.size()) << "two jobs have met in one store";
  }

  const int port_ = FreePort();
  int64_t host_ = -1;  // The rank that the host was given.
};

TEST_F(MulticastTest, TheProcessesOfAJobMeet) {
  for (int size : {1, 2, 3, 7}) ExpectOneStoreEach(std::vector<MulticastOptions>(size, At(size)));
}

TEST_F(MulticastTest, TheLowestRankHosts) {
  ExpectOneStoreEach({At(3, 2), At(3, 0), At(3, 1)});
  EXPECT_EQ(host_, 0);
  ExpectOneStoreEach({At(3), At(3, 2), At(3)});
  EXPECT_EQ(host_, 2);
}

TEST_F(MulticastTest, TwoJobsAtOneAddressStayApart) {
  std::vector<MulticastOptions> options(6, At(3));
  for (size_t i = 0; i < options.size(); i += 2) options[i].job = "another job";
  ExpectOneStoreEach(options);
}

TEST_F(MulticastTest, ALateOneIsWaitedFor) {
  const MulticastSocket socket = Socket();
  for (const absl::Status& status : RunRanks(2, [&](int i) -> absl::Status {
         if (i == 1) AwaitAnnouncement(socket);
         return DiscoverStoreByMulticast(At(2), Deadline(kTimeout)).status();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(MulticastTest, WhatIsNoAnnouncementIsIgnored) {
  std::atomic<bool> over{false};
  std::thread noise([&] {
    const MulticastSocket socket = Socket();
    std::mt19937 random(1);
    const std::string good = Ghost(3, -1).Seal("");
    while (!over) {
      std::string bytes(random() % 2000, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      socket.Send(bytes).IgnoreError();
      socket.Send(good.substr(0, random() % good.size())).IgnoreError();
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  ExpectOneStoreEach(std::vector<MulticastOptions>(3, At(3)));
  over = true;
  noise.join();
}

TEST_F(MulticastTest, OneThatHasDiedIsNotWaitedForOnceItIsReplaced) {
  const MulticastSocket socket = Socket();
  // It would be the host. It is heard while the others wait, and then no more.
  std::thread thread([&] {
    AwaitAnnouncement(socket);
    EXPECT_TRUE(socket.Send(Ghost(2, -1).Seal("")).ok());
  });
  ExpectOneStoreEach(std::vector<MulticastOptions>(2, At(2)));
  thread.join();
}

TEST_F(MulticastTest, AHostThatHasDiedIsPassedOver) {
  MulticastAnnouncement ghost = Ghost(2, 0);
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  ghost.store = TCPStore::Create(options).value()->address();  // Gone at once.
  const MulticastSocket socket = Socket();
  std::thread thread([&] {
    AwaitAnnouncement(socket);
    EXPECT_TRUE(socket.Send(ghost.Seal("")).ok());
  });
  ExpectOneStoreEach({At(2, 0), At(2, 1)});
  thread.join();
}

TEST_F(MulticastTest, HostsThatLieAndHostsThatKeepSilentHoldNobodyUp) {
  // A socket that takes connections and says nothing.
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(silent, 100), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &length), 0);
  std::atomic<bool> over{false};
  std::thread liar([&] {
    const MulticastSocket socket = Socket();
    MulticastAnnouncement ghost = Ghost(3, -1);
    ghost.store = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    MulticastAnnouncement nonsense = Ghost(3, -1);
    nonsense.store = "\xff\xfe: no address";
    nonsense.id[0] = 'x';
    while (!over) {
      socket.Send(ghost.Seal("")).IgnoreError();
      socket.Send(nonsense.Seal("")).IgnoreError();
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  const absl::Time began = absl::Now();
  ExpectOneStoreEach(std::vector<MulticastOptions>(3, At(3)));
  EXPECT_LT(absl::Now() - began, kTimeout / 3);
  over = true;
  liar.join();
  close(silent);
}

TEST_F(MulticastTest, AClientThatComesTwiceIsCountedOnce) {
  // The test is the clients: two of them, with the lowest host a real process.
  const MulticastSocket socket = Socket();
  std::atomic<bool> is_done{false};
  std::thread host([&] {
    auto opened = DiscoverStoreByMulticast(At(3, 0), Deadline(kTimeout));
    EXPECT_TRUE(opened.ok()) << opened.status();
    is_done = true;
  });
  std::vector<MulticastAnnouncement> clients = {Ghost(3, 1), Ghost(3, 2)};
  clients[0].id[0] = 'a';
  clients[1].id[0] = 'b';
  std::string address;
  while (address.empty()) {
    auto datagram = socket.Receive(kTimeout);
    ASSERT_TRUE(datagram.ok() && datagram->has_value());
    auto heard = MulticastAnnouncement::Open((*datagram)->bytes, "");
    if (!heard.ok() || heard->rank != 0) continue;
    address = heard->store;
    std::string view = heard->id;
    for (size_t i = 0; i < view.size(); ++i) view[i] ^= clients[0].id[i] ^ clients[1].id[i];
    for (MulticastAnnouncement& client : clients) {
      client.view = view;
      ASSERT_TRUE(socket.Send(client.Seal("")).ok());
    }
  }
  TCPStore::Options options;
  options.port = std::stoi(address.substr(address.rfind(':') + 1));
  auto store = TCPStore::Create(options).value();
  auto come = [&](const MulticastAnnouncement& client) {
    const std::string id = absl::BytesToHexString(client.id);
    EXPECT_TRUE(store->Set(absl::StrCat("multicast/client/", id), "").ok());
  };
  for (int i = 0; i < 3; ++i) come(clients[0]);
  // The host goes on to announce itself, for the one that has not come.
  for (int i = 0; i < 5; ++i) AwaitAnnouncement(socket);
  EXPECT_FALSE(is_done);
  come(clients[1]);
  host.join();
}

TEST_F(MulticastTest, NamesOfStrangersAreShownSoThatTheyCanBeRead) {
  const MulticastSocket socket = Socket();
  std::thread thread([&] {
    AwaitAnnouncement(socket);
    MulticastAnnouncement other = Ghost(2, 0);
    other.job = "caf\xc3";
    EXPECT_TRUE(socket.Send(other.Seal("")).ok());
    MulticastAnnouncement ghost = Ghost(2, 0);
    ghost.peer.host = "h\xff";
    EXPECT_TRUE(socket.Send(ghost.Seal("")).ok());
  });
  MulticastOptions options = At(3);
  absl::Status status = DiscoverStoreByMulticast(options, Deadline(absl::Seconds(3))).status();
  thread.join();
  EXPECT_THAT(Message(status), AnyOf(HasSubstr("caf\\xc3"), HasSubstr("h\\xff")));
  for (const char c : status.message()) EXPECT_EQ(c & 0x80, 0) << status;
}

TEST_F(MulticastTest, AJobWithoutANameIsCalledThat) {
  MulticastOptions options = At(2);
  options.job = "";
  absl::Status status =
      DiscoverStoreByMulticast(options, Deadline(absl::Milliseconds(100))).status();
  EXPECT_THAT(Message(status), HasSubstr("processes of the job without a group_name met at"));
}

TEST_F(MulticastTest, WhoIsMissingIsNamed) {
  for (const absl::Status& status : RunRanks(2, [&](int i) {
         return DiscoverStoreByMulticast(At(3, i), Deadline(absl::Seconds(3))).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("only 2 of 3 processes of job 'job'"),
                      HasSubstr(absl::StrCat(kGroup, ", port ", port_)),
                      HasSubstr(absl::StrCat("pid ", getpid())), HasSubstr("missing: rank 2")));
    EXPECT_THAT(RanksOf(status), ElementsAre(2)) << status;
  }
}

TEST_F(MulticastTest, WhoIsAloneLearnsOfOtherJobsAndStrangers) {
  const MulticastSocket socket = Socket();
  std::thread thread([&] {
    AwaitAnnouncement(socket);
    MulticastAnnouncement other = Ghost(2, 0);
    other.job = "typo";
    EXPECT_TRUE(socket.Send(other.Seal("")).ok());
    EXPECT_TRUE(socket.Send(Ghost(2, 0).Seal("a secret")).ok());
  });
  absl::Status status = DiscoverStoreByMulticast(At(2), Deadline(absl::Seconds(3))).status();
  thread.join();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("has heard nobody"), HasSubstr("'typo'"),
                                     HasSubstr("ignored 1 datagrams, the last from "),
                                     HasSubstr("SYNCLINE_SECRET_FILE")));
}

TEST_F(MulticastTest, StrangersWithoutTheSecretDoNotTakePart) {
  std::vector<MulticastOptions> options(3, At(2));
  for (MulticastOptions& each : options) each.secret = "ours";
  options[2].secret = "theirs";
  auto statuses = RunRanks(3, [&](int i) {
    return DiscoverStoreByMulticast(options[i], Deadline(i == 2 ? absl::Seconds(2) : kTimeout))
        .status();
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_EQ(KindOf(statuses[2]), ErrorKind::kTimeout) << statuses[2];
}

// A whole world: the meeting, its store and the ranks' connections.
TEST_F(MulticastTest, AWorldThatIsEncryptedMeetsAndShowsNobodyWhoItIs) {
  constexpr char kName[] = "a_name_that_nobody_else_has";
  const std::string url =
      absl::StrCat("tcp://", kGroup, ":", port_, "?world_size=3&group_name=", kName);
  const auto join_all = [&] {
    return RunRanks(3, [&](int) -> absl::Status {
      WorldOptions options;
      options.backend = "tcp";
      options.init_method = url;
      options.timeout = kTimeout;
      SYNCLINE_ASSIGN_OR_RETURN(const auto world, World::Init(options));
      std::vector<int32_t> ones = {1};
      SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(Tensor::Of(ones)));
      return ones[0] == 3 ? absl::OkStatus() : BackendError("a wrong sum");
    });
  };
  const TlsEnvironment environment;
  for (const bool is_encrypted : {true, false}) {
    // With the same secret either way.
    environment.Set(is_encrypted ? tls::Mode::kSecret : tls::Mode::kOff);
    const MulticastSocket socket = Socket();
    for (const absl::Status& status : join_all()) EXPECT_TRUE(status.ok()) << status;
    int count = 0, named = 0;
    while (true) {
      const auto datagram = socket.Receive(absl::ZeroDuration());
      ASSERT_TRUE(datagram.ok()) << datagram.status();
      if (!datagram->has_value()) break;
      ++count;
      named += absl::StrContains((*datagram)->bytes, kName);
    }
    EXPECT_GE(count, 3);
    EXPECT_EQ(named, is_encrypted ? 0 : count);
  }
}

TEST_F(MulticastTest, RanksThatAreGivenTwiceAreRefusedOnAll) {
  for (const absl::Status& status : RunRanks(3, [&](int i) {
         return DiscoverStoreByMulticast(At(3, i == 0 ? 0 : 1), Deadline(kTimeout)).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 1 of job 'job' is taken twice"));
  }
}

TEST_F(MulticastTest, SizesThatDifferAreRefusedOnAll) {
  for (const absl::Status& status : RunRanks(2, [&](int i) {
         return DiscoverStoreByMulticast(At(3 + i), Deadline(kTimeout)).status();
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("with the same world_size"));
  }
}

TEST_F(MulticastTest, TooManyProcessesAreRefused) {
  // The ghost is one too many as long as it is heard, which is until the end.
  std::atomic<bool> over{false};
  std::thread thread([&] {
    const MulticastSocket socket = Socket();
    while (!over) {
      socket.Send(Ghost(2, -1).Seal("")).IgnoreError();
      absl::SleepFor(absl::Milliseconds(20));
    }
  });
  auto statuses = RunRanks(
      2, [&](int) { return DiscoverStoreByMulticast(At(2), Deadline(kTimeout)).status(); });
  over = true;
  thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("more processes than world_size, 2"));
  }
}

TEST(MulticastAddressTest, OthersThanMulticastAddressesAreRefused) {
  for (const char* group : {"127.0.0.1", "fe80::1", "localhost"}) {
    MulticastOptions options;
    options.group = group;
    options.port = 4000;
    absl::Status status = DiscoverStoreByMulticast(options, Deadline(kTimeout)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("is not a multicast address"));
  }
  MulticastOptions options;
  options.group = kGroup;
  options.port = 4000;
  options.job = std::string(256, 'x');
  EXPECT_EQ(KindOf(DiscoverStoreByMulticast(options, Deadline(kTimeout)).status()),
            ErrorKind::kArgument);
}

}  // namespace
}  // namespace syncline
