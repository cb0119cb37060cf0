// The conformance suite of the rendezvous: every transition, on every store, with a fake clock.
#include "launch/rendezvous/rendezvous.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "launch/rendezvous/fleet.h"
#include "launch/rendezvous/job_location.h"
#include "launch/rendezvous/round_policy_options.h"
#include "store/etcd/etcd_testing.h"
#include "syncline/etcd_store.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"
#include "syncline/tcp_store.h"

namespace syncline::launch {
namespace {

using etcd_store::EtcdServer;

using ::testing::HasSubstr;
using ::testing::Not;
using Cause = Announcement::Cause;
using Kind = Announcement::Kind;
using Life = FakeNode::Life;

// Opens the store of one job again and again, as each of its nodes would.
Fleet::OpenStore OpenerOf(const std::string& kind) {
  if (kind == "hash") {
    auto store = std::make_shared<HashStore>();
    return [store] { return std::make_shared<PrefixStore>("rdzv/job", store); };
  }
  if (kind == "file") {
    static int count = 0;
    const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/rendezvous", ++count);
    return [path] {
      auto store = FileStore::Open(path);
      EXPECT_TRUE(store.ok()) << store.status();
      return std::make_shared<PrefixStore>("rdzv/job", *std::move(store));
    };
  }
  if (kind == "etcd") {
    static const EtcdServer server;
    static int count = 0;
    EtcdStore::Options options;
    options.etcd.endpoints = server.endpoint();
    options.etcd.prefix = absl::StrCat("/job", ++count);
    return [options] {
      auto store = EtcdStore::Create(options);
      EXPECT_TRUE(store.ok()) << store.status();
      return std::make_shared<PrefixStore>("rdzv/job", *std::move(store));
    };
  }
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  auto server = TCPStore::Create(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return [server = *server] {
    TCPStore::Options client;
    client.port = server->port();
    auto store = TCPStore::Create(client);
    EXPECT_TRUE(store.ok()) << store.status();
    return std::make_shared<PrefixStore>("rdzv/job", *std::move(store));
  };
}

RoundPolicyOptions Nodes(int min, int max) {
  RoundPolicyOptions options;
  options.min_nodes = min;
  options.max_nodes = max;
  return options;
}

FailureNote Failure(absl::string_view summary, double time = 1, int remoteness = 0) {
  FailureNote note;
  note.summary = std::string(summary);
  note.time = time;
  note.remoteness = remoteness;
  note.exit_code = 3;
  return note;
}

class RendezvousTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(const RoundPolicyOptions& policy, int nodes) {
    fleet_ = std::make_unique<Fleet>(OpenerOf(GetParam()), policy);
    if (GetParam() == "etcd") fleet_->step = absl::Milliseconds(50);  // It writes to a disk.
    fleet_->AddMany(nodes);
  }
  // Nodes m0, m1, ... whose round 1 ended when their store was lost, in the store that replaces
  // it. A worker of node `failed` had failed before.
  void StartAfterLoss(const RoundPolicyOptions& policy, int nodes, int failed = -1,
                      const FailureNote& note = {}) {
    Start(policy, 0);
    Round round;
    round.number = 1;
    for (int i = 0; i < nodes; ++i) {
      NodeRecord record;
      record.identity.id = absl::StrCat("m", i);
      record.round = 1;
      record.rank = i;
      if (i == failed) record.failure = note;
      fleet_->Add(record).failure = record.failure;
      round.members.push_back(record.identity);
    }
    Announcement over;
    over.kind = Kind::kOver;
    over.over = 1;
    over.cause = Cause::kStoreLost;
    over.reason = "the store is lost";
    ASSERT_TRUE(WriteHistory(*fleet_->OpenStoreOfJob(), round, over).ok());
  }
  FakeNode& node(int number) { return *fleet_->nodes[number]; }
  absl::Duration UntilRound(int number, const std::vector<int>& by_rank) {
    return fleet_->RunUntil([&] { return fleet_->InRound(number, by_rank); });
  }
  absl::Duration UntilClosed() {
    return fleet_->RunUntil([&] { return fleet_->AllClosed(); });
  }

  std::unique_ptr<Fleet> fleet_;
};

TEST_P(RendezvousTest, OneNodeIsARoundAtOnce) {
  Start(Nodes(1, 1), 1);
  ASSERT_TRUE(node(0).Step().ok());
  EXPECT_EQ(node(0).rank(), 0);
  EXPECT_EQ(node(0).round->number, 1);
}

TEST_P(RendezvousTest, ARoundFormsAsSoonAsAllHaveComeInTheOrderOfComing) {
  Start(Nodes(3, 3), 2);
  fleet_->Run(absl::Seconds(60));
  EXPECT_FALSE(node(0).round.has_value());
  fleet_->Add();
  EXPECT_LE(UntilRound(1, {0, 1, 2}), absl::Milliseconds(600));
}

TEST_P(RendezvousTest, WithEnoughNodesItWaitsForTheLastCall) {
  RoundPolicyOptions policy = Nodes(2, 4);
  policy.last_call_timeout = absl::Seconds(5);
  Start(policy, 2);
  fleet_->Run(absl::Seconds(4));
  EXPECT_FALSE(node(0).round.has_value());
  fleet_->Add();  // The wait starts over.
  fleet_->Run(absl::Seconds(4));
  EXPECT_FALSE(node(0).round.has_value());
  UntilRound(1, {0, 1, 2});
}

TEST_P(RendezvousTest, TooFewNodesGiveUpAndSayWhoHasCome) {
  RoundPolicyOptions policy = Nodes(3, 3);
  policy.join_timeout = absl::Seconds(20);
  Start(policy, 2);
  EXPECT_GE(UntilClosed(), absl::Seconds(20));
  EXPECT_EQ(node(1).closed->exit_code, 1);
  EXPECT_THAT(node(1).closed->reason, HasSubstr("2 of at least 3 node(s) have come"));
  EXPECT_THAT(node(1).closed->reason, HasSubstr("10.0.0.1 (host host1"));
}

TEST_P(RendezvousTest, NodesMayDifferInWorkersAndRoles) {
  Start(Nodes(3, 3), 0);
  for (const auto& [role, workers] : {std::pair("train", 3), {"serve", 1}, {"train", 2}}) {
    NodeIdentity identity;
    identity.role = role;
    identity.workers = workers;
    fleet_->Add(identity);
  }
  UntilRound(1, {0, 1, 2});
  const Round& round = *node(2).round;
  EXPECT_EQ(round.world_size(), 6);
  EXPECT_EQ(round.FirstWorker(2), 4);
  EXPECT_EQ(round.FirstWorkerOfRole(2), 3);
  EXPECT_EQ(round.FirstWorkerOfRole(1), 0);
  EXPECT_EQ(round.WorkersOfRole("train"), 5);
}

TEST_P(RendezvousTest, GivenRanksAreKeptHoweverNodesCome) {
  Start(Nodes(2, 2), 0);
  for (const int rank : {1, 0}) {
    NodeIdentity identity;
    identity.wanted_rank = rank;
    fleet_->Add(identity);
  }
  UntilRound(1, {1, 0});
}

TEST_P(RendezvousTest, OfTwoNodesWithOneGivenRankTheSecondHasToWait) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.join_timeout = absl::Seconds(5);
  Start(policy, 0);
  for (int i = 0; i < 2; ++i) {
    NodeIdentity identity;
    identity.wanted_rank = 0;
    fleet_->Add(identity);
  }
  UntilClosed();
  EXPECT_THAT(node(0).closed->reason, HasSubstr("1 of at least 2"));
  EXPECT_THAT(node(0).closed->reason, HasSubstr("with node rank 0"));
}

TEST_P(RendezvousTest, AFailureEndsTheRoundForAllAndTheNextHasTheSameRanks) {
  RoundPolicyOptions policy = Nodes(3, 3);
  policy.max_restarts = 1;
  Start(policy, 3);
  UntilRound(1, {0, 1, 2});
  node(1).Fail(Failure("rank 1 broke"));
  EXPECT_LE(UntilRound(2, {0, 1, 2}), absl::Seconds(1));
  EXPECT_EQ(node(0).round->restarts, 1);
  EXPECT_EQ(node(0).round->reason, "rank 1 broke");
}

TEST_P(RendezvousTest, WhenNoRestartIsLeftAllLearnTheRootCause) {
  Start(Nodes(3, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(0).Fail(Failure("consequence", 1, 2));
  node(2).Fail(Failure("later", 3));
  node(1).Fail(Failure("the cause", 2));
  UntilClosed();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(node(i).closed->failure.has_value());
    EXPECT_EQ(node(i).closed->failure->summary, "the cause");
    EXPECT_EQ(node(i).closed->exit_code, 3);
  }
}

TEST_P(RendezvousTest, AFailureThatNoRestartCanHelpClosesTheJob) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.max_restarts = 5;
  Start(policy, 2);
  UntilRound(1, {0, 1});
  FailureNote note = Failure("there is no such program");
  note.retry = FailureNote::Retry::kNever;
  node(0).Fail(note);
  UntilClosed();
  EXPECT_EQ(node(1).closed->failure->summary, "there is no such program");
}

TEST_P(RendezvousTest, ALostNodeIsMissedAndItsPlaceClosed) {
  Start(Nodes(2, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  const absl::Duration took = UntilRound(2, {0, 2});
  EXPECT_GE(took, fleet_->options.policy.lost_after);
  EXPECT_LE(took, fleet_->options.policy.lost_after + absl::Seconds(1));
  EXPECT_EQ(node(0).round->restarts, 0);
  EXPECT_THAT(node(0).round->reason, HasSubstr("host1"));
  EXPECT_THAT(node(0).round->reason, HasSubstr("is lost"));
}

TEST_P(RendezvousTest, ALostNodeThatItsPeersNoticedIsNotAwaitedForLongAndCostsNoRestart) {
  Start(Nodes(2, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  node(0).Fail(Failure("rank 1 is gone", 1, 2));
  node(2).Fail(Failure("rank 1 is gone", 1, 2));
  EXPECT_LE(UntilRound(2, {0, 2}), absl::Seconds(3));
  EXPECT_EQ(node(0).round->restarts, 0);
}

TEST_P(RendezvousTest, ALostLeaderIsReplaced) {
  Start(Nodes(2, 3), 3);
  UntilRound(1, {0, 1, 2});
  ASSERT_TRUE(node(0).rendezvous.is_leader());
  node(0).life = Life::kDead;
  UntilRound(2, {2, 1});  // Rank 0 was free.
  node(1).life = Life::kDead;
  fleet_->Add();
  UntilRound(3, {2, 3});
}

TEST_P(RendezvousTest, ALeaderLostWhileTheRoundFormsIsReplaced) {
  RoundPolicyOptions policy = Nodes(2, 2);
  Start(policy, 1);
  fleet_->Run(absl::Seconds(1));
  ASSERT_TRUE(node(0).rendezvous.is_leader());
  node(0).life = Life::kDead;
  fleet_->AddMany(2);
  EXPECT_LE(UntilRound(1, {1, 2}), absl::Seconds(5));
}

TEST_P(RendezvousTest, ANodeThatComesIsTakenInWhereThereIsRoom) {
  RoundPolicyOptions policy = Nodes(1, 3);
  policy.last_call_timeout = absl::Seconds(1);
  Start(policy, 2);
  UntilRound(1, {0, 1});
  fleet_->Add();
  EXPECT_LE(UntilRound(2, {0, 1, 2}), absl::Seconds(3));
  EXPECT_EQ(node(0).round->restarts, 0);
  EXPECT_THAT(node(0).round->reason, HasSubstr("host2"));
  fleet_->Add();  // No room.
  fleet_->Run(absl::Seconds(20));
  EXPECT_TRUE(fleet_->InRound(2, {0, 1, 2}));
  node(1).life = Life::kDead;
  UntilRound(3, {0, 3, 2});
}

TEST_P(RendezvousTest, AReplacementGetsTheRankThatIsFree) {
  Start(Nodes(3, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  fleet_->Run(absl::Seconds(10));
  fleet_->Add();
  UntilRound(2, {0, 3, 2});
}

// Whether a node is replaced does not depend on how it was lost: workers of the others notice some
// losses and not others.
TEST_P(RendezvousTest, AReplacementIsTakenInThoughWorkersOfOthersFailedAndNoRestartIsLeft) {
  Start(Nodes(3, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  node(0).Fail(Failure("rank 1 is gone", 1, 2));
  node(2).Fail(Failure("rank 1 is gone", 1, 2));
  fleet_->Run(absl::Seconds(10));
  EXPECT_FALSE(node(0).closed.has_value());
  fleet_->Add();
  UntilRound(2, {0, 3, 2});
  EXPECT_EQ(node(0).round->restarts, 0);
}

TEST_P(RendezvousTest, NodesThatWaitNameTheRoundThatIsOverAndTheLostNode) {
  RoundPolicyOptions policy = Nodes(3, 3);
  policy.join_timeout = absl::Seconds(40);
  Start(policy, 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  node(0).Fail(Failure("rank 1 is gone", 1, 2));
  node(2).Fail(Failure("rank 1 is gone", 1, 2));
  fleet_->Run(absl::Seconds(10.5));
  ASSERT_TRUE(node(0).rendezvous.is_leader());
  for (const int number : {0, 2}) {
    const auto text = node(number).rendezvous.DescribeWaiting();
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, HasSubstr("round 0 is over, and the next has not begun yet: "
                                 "2 of at least 3 node(s) have come"));
    EXPECT_THAT(*text, HasSubstr("lost or left since round 0: node 10.0.0.1 (host host1"));
    EXPECT_THAT(*text, HasSubstr("unless enough come within 29s"));
    EXPECT_THAT(*text, Not(HasSubstr(node(0).id)));
  }
  EXPECT_THAT(*node(0).rendezvous.DescribeWaiting(), HasSubstr("node 10.0.0.2 (host host2"));
  EXPECT_THAT(*node(2).rendezvous.DescribeWaiting(),
              HasSubstr("node 10.0.0.0 (host host0, pid 0) decides"));
}

TEST_P(RendezvousTest, ANodeWhoseWorkersStillStopIsNamed) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.max_restarts = 1;
  Start(policy, 2);
  UntilRound(1, {0, 1});
  node(0).Fail(Failure("rank 0 broke"));
  node(1).life = Life::kSuspended;  // It has not read that the round is over.
  fleet_->Run(absl::Seconds(1));
  const auto text = node(0).rendezvous.DescribeWaiting();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("workers still run on node 10.0.0.1 (host host1"));
}

TEST_P(RendezvousTest, ANodeWithoutAPlaceSaysThatARoundRuns) {
  Start(Nodes(2, 2), 2);
  UntilRound(1, {0, 1});
  fleet_->Add();
  fleet_->Run(absl::Seconds(1));
  const auto text = node(2).rendezvous.DescribeWaiting();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("round 0 runs with 2 of at most 2 node(s), and this node waits"));
}

TEST_P(RendezvousTest, BeforeTheFirstRoundNodesSayHowManyHaveComeAndWhoDecides) {
  Start(Nodes(3, 3), 2);
  fleet_->Run(absl::Seconds(1));
  const auto text = node(1).rendezvous.DescribeWaiting();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "no round has begun yet: 2 of at least 3 node(s) have come; "
            "node 10.0.0.0 (host host0, pid 0) decides");
  EXPECT_THAT(*node(0).rendezvous.DescribeWaiting(),
              HasSubstr("node 10.0.0.1 (host host1, pid 0); the job ends unless enough come"));
}

TEST_P(RendezvousTest, AJobThatEndsForWantOfNodesReportsTheLastFailureAsWell) {
  RoundPolicyOptions policy = Nodes(3, 3);
  policy.join_timeout = absl::Seconds(10);
  Start(policy, 3);
  UntilRound(1, {0, 1, 2});
  node(1).life = Life::kDead;
  node(0).Fail(Failure("rank 1 is gone", 1, 2));
  node(2).Fail(Failure("rank 1 is gone, too", 2, 2));
  EXPECT_GE(UntilClosed(), absl::Seconds(10));
  for (const int number : {0, 2}) {
    const Announcement& closed = *node(number).closed;
    EXPECT_EQ(closed.exit_code, 1);
    EXPECT_THAT(closed.reason, HasSubstr("no round within 10s (join_timeout) after round 0: "
                                         "2 of at least 3 node(s) have come"));
    EXPECT_THAT(closed.reason, HasSubstr("lost or left since round 0: node 10.0.0.1 (host host1"));
    ASSERT_TRUE(closed.failure.has_value());
    EXPECT_EQ(closed.failure->summary, "rank 1 is gone");
  }
}

TEST_P(RendezvousTest, AJobThatEndsForWantOfNodesWithoutAFailureReportsNone) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.join_timeout = absl::Seconds(10);
  Start(policy, 2);
  UntilRound(1, {0, 1});
  node(1).life = Life::kDead;
  UntilClosed();
  EXPECT_THAT(node(0).closed->reason, HasSubstr("since round 0: node 10.0.0.1 (host host1"));
  EXPECT_FALSE(node(0).closed->failure.has_value());
}

TEST_P(RendezvousTest, LeavingIsNotClosing) {
  Start(Nodes(1, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(0).rendezvous.Leave("SIGTERM");  // It leads.
  ASSERT_TRUE(node(0).Step().ok());
  node(0).life = Life::kDead;
  EXPECT_LE(UntilRound(2, {2, 1}), absl::Seconds(2));
  EXPECT_THAT(node(1).round->reason, HasSubstr("left: SIGTERM"));
  node(2).rendezvous.Leave("SIGTERM");
  ASSERT_TRUE(node(2).Step().ok());
  node(2).life = Life::kDead;
  EXPECT_LE(UntilRound(3, {1}), absl::Seconds(2));
}

TEST_P(RendezvousTest, TheJobSucceedsWhenAllHaveFinished) {
  Start(Nodes(2, 2), 2);
  UntilRound(1, {0, 1});
  node(0).rendezvous.Finish();
  fleet_->Run(absl::Seconds(60));
  EXPECT_FALSE(node(0).closed.has_value());
  node(1).rendezvous.Finish();
  UntilClosed();
  EXPECT_EQ(node(0).closed->exit_code, 0);
  EXPECT_EQ(node(1).closed->exit_code, 0);
}

TEST_P(RendezvousTest, ANodeThatHasFinishedStartsAgainIfAnotherFails) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.max_restarts = 1;
  Start(policy, 2);
  UntilRound(1, {0, 1});
  node(0).rendezvous.Finish();
  fleet_->Run(absl::Seconds(1));
  node(1).Fail(Failure("broke at the end"));
  UntilRound(2, {0, 1});
}

TEST_P(RendezvousTest, NobodyJoinsAJobThatIsAboutToFinish) {
  RoundPolicyOptions policy = Nodes(1, 3);
  policy.last_call_timeout = absl::ZeroDuration();
  Start(policy, 1);
  UntilRound(1, {0});
  node(0).rendezvous.Finish();
  fleet_->Add();
  UntilClosed();
  EXPECT_EQ(node(1).closed->exit_code, 0);
}

TEST_P(RendezvousTest, ASuspendedNodeComesBackAsANewcomer) {
  Start(Nodes(1, 2), 2);
  UntilRound(1, {0, 1});
  node(1).life = Life::kSuspended;
  UntilRound(2, {0});
  node(1).life = Life::kAlive;
  UntilRound(3, {0, 1});
}

TEST_P(RendezvousTest, ASuspendedLeaderFindsThatOthersWentOn) {
  Start(Nodes(2, 3), 3);
  UntilRound(1, {0, 1, 2});
  node(0).life = Life::kSuspended;
  UntilRound(2, {2, 1});
  node(0).life = Life::kAlive;
  UntilRound(3, {2, 1, 0});
  int leaders = 0;
  for (const auto& each : fleet_->nodes) leaders += each->rendezvous.is_leader() ? 1 : 0;
  EXPECT_EQ(leaders, 1);
  EXPECT_EQ(node(0).history.size(), node(1).history.size());
}

TEST_P(RendezvousTest, RestartsThatFollowQuicklyAreDelayed) {
  RoundPolicyOptions policy = Nodes(1, 1);
  policy.max_restarts = 4;
  Start(policy, 1);
  std::vector<absl::Duration> waits;
  for (int round = 1; round <= 4; ++round) {
    UntilRound(round, {0});
    node(0).Fail(Failure("broke"));
    waits.push_back(UntilRound(round + 1, {0}));
  }
  EXPECT_LE(waits[0], absl::Milliseconds(100));
  for (int i = 1; i < 4; ++i) EXPECT_GE(waits[i], absl::Seconds(1 << (i - 1)));
  fleet_->Run(absl::Minutes(2));
  node(0).Fail(Failure("broke after a long while"));
  UntilClosed();
}

TEST_P(RendezvousTest, AJobThatIsOverIsNotJoined) {
  Start(Nodes(1, 1), 1);
  UntilRound(1, {0});
  node(0).rendezvous.Finish();
  UntilClosed();
  fleet_->Add();
  UntilClosed();
  EXPECT_FALSE(node(1).round.has_value());
}

TEST_P(RendezvousTest, GoodbyesLeaveNothingBehind) {
  Start(Nodes(2, 2), 2);
  UntilRound(1, {0, 1});
  node(0).rendezvous.Finish();
  node(1).rendezvous.Finish();
  UntilClosed();
  ASSERT_TRUE(node(0).rendezvous.Deregister().ok());
  EXPECT_FALSE(*node(0).rendezvous.AllNodesLeft());
  ASSERT_TRUE(node(1).rendezvous.Deregister().ok());
  EXPECT_TRUE(*node(0).rendezvous.AllNodesLeft());
  fleet_->Add();
  fleet_->Add();
  UntilRound(1, {2, 3});  // A new job, under the same name.
}

TEST_P(RendezvousTest, NodesThatBringTheirHistoryGoOnCountingWithTheirRanks) {
  Start(Nodes(2, 2), 0);
  for (int i = 0; i < 2; ++i) {
    NodeRecord record;
    record.identity.id = absl::StrCat("m", i);
    record.round = 6 + i;
    record.restarts = 2;
    record.rank = 1 - i;
    fleet_->Add(record);
  }
  UntilRound(8, {1, 0});
  EXPECT_EQ(node(0).round->restarts, 2);
}

TEST_P(RendezvousTest, AStoreThatWasLostCostsNoRestart) {
  StartAfterLoss(Nodes(2, 2), 2);
  UntilRound(2, {0, 1});
  EXPECT_EQ(node(0).round->restarts, 0);
  EXPECT_EQ(node(0).round->reason, "the store is lost");
}

TEST_P(RendezvousTest, AFailureCountsThoughItsAnnouncementWasLostWithTheStore) {
  RoundPolicyOptions policy = Nodes(2, 2);
  policy.max_restarts = 1;
  StartAfterLoss(policy, 2, 1, Failure("rank 1 broke"));
  UntilRound(2, {0, 1});
  EXPECT_EQ(node(0).round->restarts, 1);
  EXPECT_EQ(node(0).round->reason, "rank 1 broke");
  node(0).Fail(Failure("rank 0 broke"));
  UntilClosed();
}

TEST_P(RendezvousTest, AFailureThatComesWithTheLossOfTheStoreAndItsHostCountsAsThatLoss) {
  StartAfterLoss(Nodes(2, 3), 3, 1, Failure("rank 0 is gone", 1, 2));
  node(0).life = Life::kDead;
  UntilRound(2, {2, 1});
  EXPECT_EQ(node(1).round->restarts, 0);
  EXPECT_EQ(node(1).round->reason, "the store is lost");
}

TEST_P(RendezvousTest, AFailureThatNoRestartCanHelpClosesTheJobThoughTheStoreWasLost) {
  FailureNote note = Failure("there is no such program");
  note.retry = FailureNote::Retry::kNever;
  StartAfterLoss(Nodes(2, 3), 3, 1, note);
  node(0).life = Life::kDead;
  UntilClosed();
  EXPECT_EQ(node(2).closed->reason, "there is no such program");
}

// Adds nodes that give signs of life as `options` says, one every `gap`.
absl::Duration UntilARoundOfTwo(const LaunchOptions& options, absl::Duration gap) {
  Fleet fleet(OpenerOf("hash"), RoundPolicyFor(options));
  fleet.options.keep_alive_interval = options.rendezvous.keep_alive_interval;
  fleet.Add();
  fleet.Run(gap);
  fleet.Add();
  const absl::Duration took = fleet.RunUntil([&] { return fleet.InRound(1, {0, 1}); });
  fleet.Run(absl::Minutes(2));
  EXPECT_TRUE(fleet.InRound(1, {0, 1})) << fleet.Describe();
  return took;
}

TEST(PolicyForTest, NodesWithRareSignsOfLifeFormARoundThatLasts) {
  LaunchOptions options;
  options.nodes = {2, 2};
  for (const double seconds : {0.5, 2.0, 5.0, 20.0}) {
    for (const int attempts : {2, 3, 10}) {
      options.rendezvous.keep_alive_interval = absl::Seconds(seconds);
      options.rendezvous.keep_alive_max_attempt = attempts;
      SCOPED_TRACE(absl::StrCat(seconds, " s, ", attempts, " attempts"));
      EXPECT_LE(UntilARoundOfTwo(options, absl::Seconds(seconds / 2)), absl::Seconds(1));
    }
  }
}

// How long the first four rounds of one node, whose worker fails at once, are waited for.
std::vector<absl::Duration> WaitsBetweenRestarts(const LaunchOptions& options) {
  Fleet fleet(OpenerOf("hash"), RoundPolicyFor(options));
  fleet.Add();
  std::vector<absl::Duration> waits;
  for (int round = 1; round <= 5; ++round) {
    const absl::Duration took = fleet.RunUntil([&] { return fleet.InRound(round, {0}); });
    if (round > 1) waits.push_back(absl::Trunc(took, absl::Milliseconds(100)));
    fleet.nodes[0]->Fail(Failure("broke"));
  }
  return waits;
}

TEST(PolicyForTest, TheBackoffBetweenRestartsIsAnOption) {
  using ::testing::ElementsAre;
  LaunchOptions options;
  options.max_restarts = 10;
  const absl::Duration second = absl::Seconds(1);
  const absl::Duration none = absl::ZeroDuration();
  EXPECT_THAT(WaitsBetweenRestarts(options), ElementsAre(none, second, 2 * second, 4 * second));
  options.rendezvous.restart_backoff = absl::Seconds(0);
  EXPECT_THAT(WaitsBetweenRestarts(options), ElementsAre(none, none, none, none));
  options.rendezvous.restart_backoff = absl::Seconds(10);
  EXPECT_THAT(WaitsBetweenRestarts(options),
              ElementsAre(none, 10 * second, 20 * second, 30 * second));
  options.rendezvous.restart_backoff = absl::Seconds(50);  // More than the usual maximum.
  EXPECT_THAT(WaitsBetweenRestarts(options),
              ElementsAre(none, 50 * second, 50 * second, 50 * second));
}

// How long a node waits to be taken in, while another one comes `gap` after it.
absl::Duration UntilTwoMoreAreIn(const LaunchOptions& options, absl::Duration gap) {
  Fleet fleet(OpenerOf("hash"), RoundPolicyFor(options));
  fleet.Add();
  fleet.RunUntil([&] { return fleet.InRound(1, {0}); });
  fleet.Add();
  fleet.Run(gap);
  EXPECT_TRUE(fleet.InRound(1, {0}));
  fleet.Add();
  return gap + fleet.RunUntil([&] { return fleet.InRound(2, {0, 1, 2}); });
}

TEST(PolicyForTest, TheDelayOfNewNodesIsAnOptionSoThatSeveralCostOneRestart) {
  LaunchOptions options;
  options.nodes = {1, 3};
  options.rendezvous.last_call_timeout = absl::Seconds(1);
  EXPECT_LE(UntilTwoMoreAreIn(options, absl::Seconds(0.5)), absl::Seconds(2));
  options.rendezvous.scale_up_delay = absl::Seconds(20);
  const absl::Duration took = UntilTwoMoreAreIn(options, absl::Seconds(19));
  EXPECT_GE(took, absl::Seconds(20));
  EXPECT_LE(took, absl::Seconds(21));
}

TEST(PolicyForTest, WithoutDelayANewNodeIsTakenInAtOnce) {
  LaunchOptions options;
  options.nodes = {1, 2};
  options.rendezvous.last_call_timeout = absl::Seconds(1);
  options.rendezvous.scale_up_delay = absl::ZeroDuration();
  Fleet fleet(OpenerOf("hash"), RoundPolicyFor(options));
  fleet.Add();
  fleet.RunUntil([&] { return fleet.InRound(1, {0}); });
  fleet.Add();
  EXPECT_LT(fleet.RunUntil([&] { return fleet.InRound(2, {0, 1}); }), absl::Seconds(1));
}

TEST(PolicyForTest, ANodeThatIsSilentForThreeIntervalsIsNotWaitedFor) {
  LaunchOptions options;
  EXPECT_EQ(RoundPolicyFor(options).silent_after, absl::Milliseconds(1500));
  options.rendezvous.keep_alive_interval = absl::Seconds(5);
  EXPECT_EQ(RoundPolicyFor(options).silent_after, absl::Seconds(15));
  options.rendezvous.keep_alive_max_attempt = 2;
  EXPECT_EQ(RoundPolicyFor(options).silent_after, absl::Seconds(10));
  options.rendezvous.heartbeat_timeout = absl::Seconds(60);
  EXPECT_EQ(RoundPolicyFor(options).silent_after, absl::Seconds(10));
}

INSTANTIATE_TEST_SUITE_P(Stores, RendezvousTest, ::testing::Values("hash", "file", "tcp", "etcd"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace syncline::launch
