// Participants with their threads, over the network.
#include "launch/rendezvous/participant.h"

#include <poll.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "store/tcp_server.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using Kind = ParticipantNews::Kind;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kSecret[] = "secret";

// A node with its store, as a launcher has it.
class TestNode {
 public:
  TestNode(const LaunchOptions& options, int number, const Clock& clock) {
    TCPServer::Options server;
    server.secret = kSecret;
    server_ = *TCPServer::Start(server);
    NodeIdentity identity;
    identity.id = absl::StrCat("n", number);
    identity.address = "127.0.0.1";
    identity.store = absl::StrCat("127.0.0.1:", server_->port());
    participant = MakeNetworkParticipant(options, identity, kSecret, clock);
    participant->Wait(std::nullopt, 1);
  }

  void TakeNews() {
    for (ParticipantNews& news : participant->Take()) {
      if (news.kind == Kind::kFailed) failure = news.text;
      if (news.kind != Kind::kAnnouncement) continue;
      const Announcement& announcement = news.announcement;
      if (announcement.kind == Announcement::Kind::kRound) {
        round = announcement.round;
        if (round.RankOf(participant->identity().id) >= 0) participant->Run(round);
      }
      if (announcement.kind == Announcement::Kind::kOver && announcement.over == round.number) {
        participant->Wait(std::nullopt, 1);
      }
      if (announcement.kind == Announcement::Kind::kClosed) closed = announcement;
    }
  }

  std::unique_ptr<Participant> participant;
  Round round;
  std::optional<Announcement> closed;
  std::string failure;

 private:
  std::unique_ptr<TCPServer> server_;
};

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
    const absl::Time limit = clock_.Now() + kPatience;
    while (!condition()) {
      if (clock_.Now() > limit) return false;
      for (const auto& node : nodes_) {
        if (node != nullptr) node->TakeNews();
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
  void Add(const LaunchOptions& options) {
    nodes_.push_back(std::make_unique<TestNode>(options, static_cast<int>(nodes_.size()), clock_));
  }
  // As if the launcher were killed: its store and its connections are gone.
  void Lose(int node) { nodes_[node].reset(); }

  const MonotonicClock clock_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

TEST_F(ParticipantTest, NodesMeetAtTheEndpointAndPartWhenTheJobIsDone) {
  for (int i = 0; i < 3; ++i) Add(Endpoint(29401, 3, 3));
  ASSERT_TRUE(AllIn(1, 3));
  for (const auto& node : nodes_) node->participant->Finish();
  ASSERT_TRUE(Await([&] {
    return nodes_[0]->closed.has_value() && nodes_[1]->closed.has_value() &&
           nodes_[2]->closed.has_value();
  }));
  // The one that hosts the store stays until the others have gone.
  const absl::Time began = clock_.Now();
  std::vector<std::thread> leaving;
  for (const auto& node : nodes_) {
    leaving.emplace_back([&node] { node->participant->Depart(std::nullopt, kPatience); });
  }
  for (std::thread& thread : leaving) thread.join();
  EXPECT_LT(clock_.Now() - began, absl::Seconds(4));
}

TEST_F(ParticipantTest, WhenTheHostOfTheStoreIsLostTheFirstSurvivorHoldsIt) {
  LaunchOptions options = Endpoint(29402, 2, 3);
  Add(options);
  ASSERT_TRUE(Await([&] { return nodes_[0]->participant->identity().id == "n0"; }));
  absl::SleepFor(absl::Milliseconds(300));  // So that it, not another, hosts and leads.
  Add(options);
  Add(options);
  ASSERT_TRUE(AllIn(1, 3));
  Lose(0);
  ASSERT_TRUE(AllIn(2, 2));
  // Who comes to the endpoint now hosts a store there, and is told where the job is.
  Add(options);
  ASSERT_TRUE(AllIn(3, 3));
  EXPECT_TRUE(nodes_[3]->failure.empty());
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
  absl::SleepFor(absl::Milliseconds(300));
  LaunchOptions other = Endpoint(29404, 2, 2);
  other.rendezvous.read_timeout = absl::Seconds(1);
  NodeIdentity identity;
  identity.id = "stranger";
  auto stranger = MakeNetworkParticipant(other, identity, "another secret", clock_);
  std::string failure;
  ASSERT_TRUE(Await([&] {
    for (const ParticipantNews& news : stranger->Take()) {
      if (news.kind == Kind::kFailed) failure = news.text;
    }
    return !failure.empty();
  }));
  EXPECT_THAT(failure, HasSubstr("secret"));
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
}  // namespace syncline
