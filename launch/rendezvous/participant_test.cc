// Participants with their threads, over the network.
#include "launch/rendezvous/participant.h"

#include <poll.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/join/listen_lock.h"
#include "gmock/gmock.h"
#include "launch/rendezvous/store_network.h"
#include "store/etcd/etcd_testing.h"
#include "store/tcp/tcp_server.h"
#include "syncline/etcd_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::launch {
namespace {

using etcd_store::EtcdServer;
using etcd_store::LossyProxy;

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Kind = RendezvousEvent::Kind;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kSecret[] = "secret";

// A node with its store, as a launcher has it.
class TestNode {
 public:
  TestNode(const LaunchOptions& options, int number, const Clock& clock) {
    tcp_store::TCPServer::Options server;
    server.secret = kSecret;
    server_ = *tcp_store::TCPServer::Start(server);
    NodeIdentity identity;
    identity.id = absl::StrCat("n", number);
    identity.host = absl::StrCat("host", number);
    identity.address = "127.0.0.1";
    identity.store = absl::StrCat("127.0.0.1:", server_->port());
    participant = MakeNetworkParticipant(options, identity, kSecret, clock);
    participant->Wait(std::nullopt, 1);
  }

  void TakeEvents() {
    for (RendezvousEvent& event : participant->Take()) {
      if (event.kind == Kind::kFailed) failure = event.text;
      if (event.kind == Kind::kMessage) absl::StrAppend(&messages, " (", event.text, ")");
      if (event.kind != Kind::kAnnouncement) continue;
      const Announcement& announcement = event.announcement;
      if (announcement.kind == Announcement::Kind::kRound) {
        round = announcement.round;
        is_running = round.RankOf(participant->identity().id) >= 0;
        if (is_running) participant->Run(round);
      }
      if (announcement.kind == Announcement::Kind::kOver && announcement.over == round.number) {
        is_running = false;
        participant->Wait(std::nullopt, 1);
      }
      if (announcement.kind == Announcement::Kind::kClosed) closed = announcement;
    }
  }

  std::unique_ptr<Participant> participant;
  Round round;
  std::optional<Announcement> closed;
  std::string failure;
  std::string messages;
  bool is_running = false;

 private:
  std::unique_ptr<tcp_store::TCPServer> server_;
};

int PortOf(const std::string& endpoint) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(endpoint.substr(endpoint.rfind(':') + 1), &port)) << endpoint;
  return port;
}

// A port for an endpoint. The test has a loopback of its own.
LaunchOptions Endpoint(int port, int min, int max) {
  LaunchOptions options;
  options.rendezvous.backend = RendezvousOptions::Backend::kC10d;
  options.rendezvous.host = "127.0.0.1";
  options.rendezvous.port = port;
  options.rendezvous.id = "job";
  options.nodes = {min, max};
  return options;
}

class ParticipantTest : public ::testing::Test {
 protected:
  void TearDown() override {
    // Together: each takes half a second to stop listening for announcements.
    std::vector<std::thread> ending;
    for (auto& node : nodes_) ending.emplace_back([&node] { node.reset(); });
    for (std::thread& thread : ending) thread.join();
  }

  bool Await(const std::function<bool()>& condition) {
    const absl::Time limit = clock_.Now() + kTimeout;
    while (!condition()) {
      if (clock_.Now() > limit) return false;
      for (const auto& node : nodes_) {
        if (node != nullptr) node->TakeEvents();
      }
      std::vector<pollfd> fds;
      for (const auto& node : nodes_) {
        if (node != nullptr) fds.push_back({node->participant->fd(), POLLIN, 0});
      }
      poll(fds.data(), fds.size(), 20);
    }
    return true;
  }
  bool AllIn(int number, size_t members) {
    return Await([&] {
      for (const auto& node : nodes_) {
        if (node == nullptr) continue;
        if (node->round.number != number || node->round.members.size() != members) return false;
      }
      return true;
    });
  }
  // So that the first node, not another, hosts and leads.
  bool AwaitServing(int port) {
    return Await([&] {
      TCPStore::Options options;
      options.port = port;
      options.secret = kSecret;
      options.connect_timeout = absl::Milliseconds(100);
      return TCPStore::Create(options).ok();
    });
  }
  std::string Describe() const {
    std::string text;
    for (const auto& node : nodes_) {
      absl::StrAppend(&text, "round ", node->round.number, " of ", node->round.members.size(), " ",
                      node->failure, node->closed.has_value() ? node->closed->reason : "",
                      node->messages, "; ");
    }
    return text;
  }
  bool AllClosed() {
    return Await([&] {
      for (const auto& node : nodes_) {
        if (!node->closed.has_value()) return false;
      }
      return true;
    });
  }
  // Returns once two nodes are in their first round.
  void StartTwo(const LaunchOptions& options) {
    Add(options);
    Add(options);
    ASSERT_TRUE(AllIn(1, 2));
  }
  // Waits until all nodes have heard that the job is over.
  void ExpectSuccessInTheFirstRound() {
    ASSERT_TRUE(AllClosed()) << Describe();
    EXPECT_EQ(nodes_[0]->closed->exit_code, 0);
    EXPECT_EQ(nodes_[0]->round.number, 1);
  }
  void Add(const LaunchOptions& options) {
    nodes_.push_back(std::make_unique<TestNode>(options, static_cast<int>(nodes_.size()), clock_));
  }
  // As if the launcher were killed: its store and its connections are gone.
  void StartSearch(int node) { nodes_[node].reset(); }

  const MonotonicClock clock_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

TEST_F(ParticipantTest, NodesMeetAtTheEndpointAndPartWhenTheJobIsDone) {
  for (int i = 0; i < 3; ++i) Add(Endpoint(29401, 3, 3));
  ASSERT_TRUE(AllIn(1, 3));
  for (const auto& node : nodes_) node->participant->Finish();
  ASSERT_TRUE(AllClosed());
  // The one that hosts the store stays until the others have gone.
  const absl::Time began = clock_.Now();
  std::vector<std::thread> leaving;
  for (const auto& node : nodes_) {
    leaving.emplace_back([&node] { node->participant->Leave(std::nullopt, kTimeout); });
  }
  for (std::thread& thread : leaving) thread.join();
  EXPECT_LT(clock_.Now() - began, absl::Seconds(12));
}

TEST_F(ParticipantTest, WhenTheHostOfTheStoreIsLostTheFirstSurvivorHoldsIt) {
  LaunchOptions options = Endpoint(29402, 2, 3);
  Add(options);
  ASSERT_TRUE(Await([&] { return nodes_[0]->participant->identity().id == "n0"; }));
  absl::SleepFor(absl::Milliseconds(300));  // So that it, not another, hosts and leads.
  Add(options);
  Add(options);
  ASSERT_TRUE(AllIn(1, 3));
  StartSearch(0);
  ASSERT_TRUE(AllIn(2, 2));
  // A node that comes to the endpoint now hosts a store there, and learns where the job is.
  Add(options);
  ASSERT_TRUE(AllIn(3, 3));
  EXPECT_TRUE(nodes_[3]->failure.empty());
}

TEST_F(ParticipantTest, ANewcomerFindsTheJobAtTheEndpointThoughTheNodeThatServedItIsLost) {
  LaunchOptions options = Endpoint(29410, 1, 2);
  options.rendezvous.last_call_timeout = absl::Seconds(5);
  Add(options);
  ASSERT_TRUE(AwaitServing(29410));
  Add(options);
  ASSERT_TRUE(AllIn(1, 2));
  StartSearch(0);
  ASSERT_TRUE(AllIn(2, 1));
  // It serves no endpoint itself; the survivor, on the same host, does.
  options.rendezvous.hosting = RendezvousOptions::Hosting::kNever;
  Add(options);
  ASSERT_TRUE(AllIn(3, 2)) << Describe();
}

TEST_F(ParticipantTest, AllNodesThatWaitForALostOneNameIt) {
  LaunchOptions options = Endpoint(29411, 3, 3);
  options.rendezvous.keep_alive_interval = absl::Milliseconds(200);
  Add(options);
  ASSERT_TRUE(AwaitServing(29411));
  Add(options);
  Add(options);
  ASSERT_TRUE(AllIn(1, 3));
  StartSearch(1);
  const std::string expected = "lost or left since round 0: node 127.0.0.1 (host host1, pid 0)";
  ASSERT_TRUE(Await([&] {
    return absl::StrContains(nodes_[0]->messages, expected) &&
           absl::StrContains(nodes_[2]->messages, expected);
  })) << nodes_[0]->messages
      << nodes_[2]->messages;
  EXPECT_THAT(nodes_[2]->messages, HasSubstr("(host host0, pid 0) decides"));
}

TEST_F(ParticipantTest, ANodeThatIsDoneDoesNotEndTheJobWhileLaterRanksRun) {
  LaunchOptions options = Endpoint(29407, 2, 3);
  Add(options);
  ASSERT_TRUE(AwaitServing(29407));
  Add(options);
  Add(options);
  ASSERT_TRUE(AllIn(1, 3));
  const std::string last = nodes_[0]->round.members[2].id;
  const size_t done = last == "n1" ? 2 : 1;  // Rank 1.
  nodes_[done]->participant->Finish();
  absl::SleepFor(absl::Milliseconds(200));  // Not to synchronise: either order must do.
  StartSearch(0);
  ASSERT_TRUE(AllIn(2, 2));
  EXPECT_FALSE(nodes_[1]->closed.has_value());
  EXPECT_FALSE(nodes_[2]->closed.has_value());
}

TEST_F(ParticipantTest, ANodeThatIsDoneAndFindsNobodyEndsWithSuccess) {
  LaunchOptions options = Endpoint(29408, 2, 2);
  Add(options);
  ASSERT_TRUE(AwaitServing(29408));
  Add(options);
  ASSERT_TRUE(AllIn(1, 2));
  nodes_[1]->participant->Finish();
  absl::SleepFor(absl::Milliseconds(200));
  StartSearch(0);
  ASSERT_TRUE(Await([&] { return nodes_[1]->closed.has_value(); }));
  EXPECT_EQ(nodes_[1]->closed->exit_code, 0);
}

TEST_F(ParticipantTest, AParticipantEndsWhateverItsStoreDoes) {
  // Signs of life every 5 s: a call to the store is given 50 s.
  LaunchOptions options = Endpoint(29409, 1, 2);
  options.rendezvous.keep_alive_interval = absl::Seconds(5);
  options.rendezvous.last_call_timeout = absl::Milliseconds(10);
  tcp_store::TCPServer::Options server;
  server.secret = kSecret;
  const auto store = *tcp_store::TCPServer::Start(server);
  LossyProxy proxy(store->port());
  options.rendezvous.hosting = RendezvousOptions::Hosting::kNever;
  options.rendezvous.port = PortOf(proxy.endpoint());
  Add(options);
  ASSERT_TRUE(AllIn(1, 1));
  proxy.Set(LossyProxy::Mode::kSwallow);
  nodes_[0]->participant->Finish();
  const absl::Time began = clock_.Now();
  nodes_[0]->participant->Leave("SIGTERM", absl::Seconds(1));
  nodes_[0].reset();
  EXPECT_LT(clock_.Now() - began, absl::Seconds(20));
}

TEST(RendezvousNetworkTest, AnInterruptEndsAllCallsThatAreMadeAtOnce) {
  StoreNetworkOptions options;
  const auto network = MakeStoreNetwork(options);
  std::atomic<int> made{0};
  std::atomic<int> interrupted{0};
  const auto check = [&] { return made > 2 ? InterruptedError("enough") : absl::OkStatus(); };
  const InterruptScope scope(check);
  const absl::Time began = absl::Now();
  network->ForAll(5, [&](size_t) {
    ++made;
    if (!SleepInterruptibly(kTimeout).ok()) ++interrupted;
  });
  EXPECT_EQ(made, 5);
  EXPECT_EQ(interrupted, 5);
  EXPECT_LT(absl::Now() - began, kTimeout / 2);
}

TEST(RendezvousNetworkTest, WhereNobodyListensACallIsRefusedAndElsewhereNot) {
  StoreNetworkOptions options;
  options.secret = kSecret;
  options.call_timeout = kTimeout;
  const auto network = MakeStoreNetwork(options);
  tcp_store::TCPServer::Options at;
  at.secret = kSecret;
  auto server = *tcp_store::TCPServer::Start(at);
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  EXPECT_TRUE(network->Connect(address, kTimeout, kTimeout).status.ok());
  server.reset();
  EXPECT_TRUE(network->Connect(address, kTimeout, kTimeout).is_refused);
  const auto unknown = network->Connect("Connection refused:1", kTimeout, kTimeout);
  EXPECT_FALSE(unknown.status.ok());
  EXPECT_FALSE(unknown.is_refused);
}

TEST(RendezvousNetworkTest, WhatCannotBeReachedIsSaidBeforeWhyThisNodeDoesNotHostIt) {
  StoreNetworkOptions options;
  options.rendezvous = Endpoint(29410, 1, 2).rendezvous;
  options.rendezvous.host = "192.0.2.1";  // RFC 5737: in documentation only.
  options.secret = kSecret;
  options.call_timeout = kTimeout;
  const auto opened =
      MakeStoreNetwork(options)->Open(absl::Milliseconds(200), [] { return false; });
  EXPECT_EQ(KindOf(opened.status()), ErrorKind::kNetwork) << opened.status();
  EXPECT_THAT(std::string(opened.status().message()),
              AllOf(StartsWith("the rendezvous at 192.0.2.1:29410 cannot be reached: "),
                    EndsWith("; nor does this node host it: cannot listen on 192.0.2.1:29410: "
                             "this host does not have that address")));
}

TEST_F(ParticipantTest, ANodeThatNobodyAnswersSaysSo) {
  LaunchOptions options = Endpoint(29403, 2, 2);
  options.rendezvous.hosting = RendezvousOptions::Hosting::kNever;
  options.rendezvous.read_timeout = absl::Seconds(1);
  options.rendezvous.join_timeout = absl::Seconds(1);
  Add(options);
  ASSERT_TRUE(Await([&] { return !nodes_[0]->failure.empty(); }));
  EXPECT_THAT(nodes_[0]->failure, HasSubstr("127.0.0.1:29403"));
}

TEST_F(ParticipantTest, AnotherJobsNodesAreRefused) {
  Add(Endpoint(29404, 2, 2));
  ASSERT_TRUE(AwaitServing(29404));
  LaunchOptions other = Endpoint(29404, 2, 2);
  other.rendezvous.read_timeout = absl::Seconds(1);
  NodeIdentity identity;
  identity.id = "stranger";
  auto stranger = MakeNetworkParticipant(other, identity, "another secret", clock_);
  std::string failure;
  ASSERT_TRUE(Await([&] {
    for (const RendezvousEvent& event : stranger->Take()) {
      if (event.kind == Kind::kFailed) failure = event.text;
    }
    return !failure.empty();
  }));
  EXPECT_THAT(failure, HasSubstr("127.0.0.1:29404 cannot be reached: "));
  EXPECT_THAT(failure, HasSubstr("secret"));
  EXPECT_THAT(failure, Not(HasSubstr("this node")));
}

TEST_F(ParticipantTest, NodesMeetThoughAStrangerHoldsTheNameThatOrdersTheirAttempts) {
  const join::ListenLock squatter("127.0.0.1", 29406);
  ASSERT_TRUE(squatter.is_held());
  LaunchOptions options = Endpoint(29406, 2, 2);
  options.rendezvous.read_timeout = absl::Seconds(10);
  options.rendezvous.join_timeout = absl::Seconds(10);
  Add(options);
  Add(options);
  ASSERT_TRUE(AllIn(1, 2)) << nodes_[0]->failure;
}

LaunchOptions Etcd(const LossyProxy& proxy, int nodes) {
  LaunchOptions options = Endpoint(PortOf(proxy.endpoint()), nodes, nodes);
  options.rendezvous.backend = RendezvousOptions::Backend::kEtcd;
  options.rendezvous.etcd.prefix = "/around/keys/job";  // A store below "/around" sees all of it.
  return options;
}

TEST_F(ParticipantTest, ARoundOutlivesAnEtcdThatIsAwayForLongerThanTheJoinTimeout) {
  const EtcdServer server;
  LossyProxy proxy(server.port());
  LaunchOptions options = Etcd(proxy, 2);
  options.rendezvous.join_timeout = absl::Seconds(4);
  ASSERT_NO_FATAL_FAILURE(StartTwo(options));
  proxy.Set(LossyProxy::Mode::kRefuse);
  absl::SleepFor(absl::Seconds(8));  // Longer than a lease of join_timeout, which etcd may raise.
  proxy.Set(LossyProxy::Mode::kForward);
  for (const auto& node : nodes_) node->participant->Finish();
  ExpectSuccessInTheFirstRound();
}

TEST_F(ParticipantTest, ANodeThatIsDoneStaysDoneWhenEtcdIsAwayForAWhile) {
  const EtcdServer server;
  LossyProxy proxy(server.port());
  ASSERT_NO_FATAL_FAILURE(StartTwo(Etcd(proxy, 2)));
  nodes_[0]->participant->Finish();
  absl::SleepFor(absl::Milliseconds(500));
  // Long enough for gRPC to pause between its attempts, so that a new connection is the first that
  // reaches etcd again.
  proxy.Set(LossyProxy::Mode::kRefuse);
  absl::SleepFor(absl::Seconds(5));
  proxy.Set(LossyProxy::Mode::kForward);
  ASSERT_TRUE(Await([&] { return nodes_[1]->is_running; }));
  nodes_[1]->participant->Finish();
  ExpectSuccessInTheFirstRound();
}

TEST_F(ParticipantTest, AJobGoesOnWhenEtcdHasLostItsContents) {
  const EtcdServer server;
  LossyProxy proxy(server.port());
  ASSERT_NO_FATAL_FAILURE(StartTwo(Etcd(proxy, 2)));
  // As if the lease had ended.
  proxy.Set(LossyProxy::Mode::kRefuse);
  EtcdStore::Options around;
  around.etcd.endpoints = server.endpoint();
  around.etcd.prefix = "/around";
  const auto store = EtcdStore::Create(around);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto keys = (*store)->Keys("");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_FALSE(keys->empty());
  for (const std::string& key : *keys) EXPECT_TRUE((*store)->Delete(key).ok());
  proxy.Set(LossyProxy::Mode::kForward);
  // They go on in their round, or in the next one.
  ASSERT_TRUE(Await([&] {
    for (const auto& node : nodes_) {
      if (node->is_running) node->participant->Finish();
    }
    return nodes_[0]->closed.has_value() && nodes_[1]->closed.has_value();
  })) << Describe();
  EXPECT_EQ(nodes_[0]->closed->exit_code, 0) << Describe();
  EXPECT_EQ(nodes_[1]->closed->exit_code, 0) << Describe();
}

TEST_F(ParticipantTest, FiveHundredNodesFormARound) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kCount = 40;  // A sanitizer takes many times the processor's time.
#else
  constexpr int kCount = 500;
#endif
  const LaunchOptions options = Endpoint(29405, kCount, kCount);
  const absl::Time began = clock_.Now();
  for (int i = 0; i < kCount; ++i) Add(options);
  const absl::Time started = clock_.Now();
  ASSERT_TRUE(AllIn(1, static_cast<size_t>(kCount)));
  std::printf("%d nodes: started in %.2f s, in one round after %.2f s\n", kCount,
              absl::ToDoubleSeconds(started - began), absl::ToDoubleSeconds(clock_.Now() - began));
}

}  // namespace
}  // namespace syncline::launch
