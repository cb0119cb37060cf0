#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "backends/common/failure_reporter.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/testing/faults.h"
#include "core/testing/forwarding_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Ranks 0 to n - 1 of a group, all of which are this process.
std::vector<backends::PeerTable> JoinAll(Store& store, int n) {
  std::vector<std::optional<backends::PeerTable>> made(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      made[rank] = backends::PeerTable::Join(store, rank, n, absl::StrCat("at ", rank),
                                             Deadline(absl::Seconds(30)))
                       .value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<backends::PeerTable> tables;
  for (auto& table : made) tables.push_back(*std::move(table));
  return tables;
}

backends::Failure Lost(std::vector<int> awaited, std::vector<int> lost = {}) {
  backends::Failure failure;
  failure.operation = "all_reduce #5 (float32, 10 elements, sum)";
  failure.awaited = std::move(awaited);
  failure.lost = std::move(lost);
  failure.cause = NetworkError("connection closed by peer");
  failure.elapsed = absl::Milliseconds(200);
  return failure;
}

backends::Failure TimedOut(std::vector<int> awaited) {
  backends::Failure failure = Lost(std::move(awaited));
  failure.cause = TimeoutError("not complete after 1s");
  failure.timeout = absl::Seconds(1);
  return failure;
}

// All of `failures`, by rank, at once.
std::vector<absl::Status> DiagnoseAll(const std::shared_ptr<Store>& store,
                                      const std::vector<backends::PeerTable>& tables,
                                      const std::vector<backends::Failure>& failures) {
  std::vector<absl::Status> verdicts(failures.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    threads.emplace_back([&, rank] {
      verdicts[rank] = backends::FailureReporter(store, tables[rank]).Diagnose(failures[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verdicts;
}

// Nothing that is asked of it is ever answered.
class HangingStore : public Store {
 public:
  ~HangingStore() override = default;

  absl::Status Set(absl::string_view, absl::string_view) override { return Hang(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration) override { return Hang(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t) override { return Hang(); }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view, absl::string_view,
                                              absl::string_view) override {
    return Hang();
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration) override { return Hang(); }
  absl::StatusOr<bool> Check(absl::Span<const std::string>) override { return Hang(); }
  absl::StatusOr<bool> Delete(absl::string_view) override { return Hang(); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view) override { return Hang(); }
  absl::Status Append(absl::string_view, absl::string_view) override { return Hang(); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration) override {
    return Hang();
  }
  absl::Status MultiSet(absl::Span<const std::string>, absl::Span<const std::string>) override {
    return Hang();
  }
  absl::Duration timeout() const override { return kDefaultStoreTimeout; }
  std::string ToString() const override { return "tcp://10.0.0.1:29500"; }

  void Release() { released_.Notify(); }

 private:
  absl::Status Hang() {
    released_.WaitForNotification();
    return StoreError("released");
  }

  absl::Notification released_;
};

TEST(PeerTableTest, EveryRankKnowsTheOthers) {
  HashStore store;
  const auto tables = JoinAll(store, 3);
  EXPECT_EQ(tables[0].size(), 3);
  EXPECT_EQ(tables[0].payload(2), "at 2");
  EXPECT_THAT(tables[0].Describe(2),
              AllOf(HasSubstr("rank 2 (host "), HasSubstr(absl::StrCat(", pid ", getpid(), ")"))));
  EXPECT_EQ(tables[0].LivenessOf(2), base::Liveness::kAlive);
}

TEST(PeerTableTest, ARankOfAnotherVersionIsNamed) {
  HashStore store;
  const Peer peer = base::IdentifyThisProcess().value();
  ASSERT_TRUE(store.Set("member/1", peer.Serialize() + "\nprotocol 1\n\n\n").ok());
  const absl::Status status =
      backends::PeerTable::Join(store, 0, 2, "", Deadline(absl::Seconds(30))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr(absl::StrCat("pid ", getpid(), " speaks protocol 1")),
                    HasSubstr("install the same version")));
}

TEST(PeerTableTest, ATimeoutNamesTheRanksThatHaveNotCome) {
  HashStore store;
  absl::Status status =
      backends::PeerTable::Join(store, 1, 4, "", Deadline(absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(Message(status), HasSubstr("ranks 0, 2 and 3 of 4 have not joined"));
}

// What is waited for comes when the first wait has just ended.
class LateStore final : public HangingStore {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration timeout) override {
    absl::SleepFor(timeout);
    return TimeoutError("not set");
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration) override {
    return absl::OkStatus();
  }
};

TEST(PeerTableTest, ATimeoutSaysThatTheLastRankCameTooLate) {
  LateStore store;
  absl::Status status =
      backends::PeerTable::Join(store, 1, 2, "", Deadline(absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(Message(status), HasSubstr("the last of 2 ranks came just after the 50ms"));
}

// Ends waits in time, and no other call.
class StuckStore final : public HangingStore {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration timeout) override {
    absl::SleepFor(timeout);
    return TimeoutError("the server has not answered");
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration timeout) override {
    waited_ += timeout;
    return TimeoutError("the server has not answered");
  }

  absl::Duration waited() const { return waited_; }

 private:
  absl::Duration waited_;
};

TEST(PeerTableTest, AStoreThatDoesNotAnswerIsToldFromAbsentRanksAndHoldsNobodyUp) {
  StuckStore store;
  absl::Status status =
      backends::PeerTable::Join(store, 1, 2, "", Deadline(absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_LT(store.waited(), absl::Milliseconds(2500));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("the store does not tell which"),
                    HasSubstr("the server has not answered"), Not(HasSubstr("have not joined"))));
}

TEST(FailureReportTest, TheRankThatStaysSilentIsNamed) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 3);
  for (const absl::Status& diagnosis :
       DiagnoseAll(store, tables, {Lost({1, 2}, {2}), Lost({0, 2}, {0, 2})})) {
    EXPECT_EQ(KindOf(diagnosis), ErrorKind::kNetwork);
    EXPECT_THAT(Message(diagnosis),
                AllOf(HasSubstr("sum) failed after 200ms: rank 2 (host "),
                      HasSubstr("closed the connection"), HasSubstr("connection closed by peer"),
                      Not(HasSubstr("rank 0")), Not(HasSubstr("rank 1"))));
    EXPECT_THAT(RanksOf(diagnosis), ElementsAre(2));
  }
}

TEST(FailureReportTest, ATimeoutOnOneRankIsATimeoutOnAll) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 3);
  for (const absl::Status& diagnosis :
       DiagnoseAll(store, tables, {TimedOut({1, 2}), Lost({0, 2}, {0})})) {
    EXPECT_EQ(KindOf(diagnosis), ErrorKind::kTimeout);
    EXPECT_THAT(Message(diagnosis), HasSubstr("rank 2 (host "));
    EXPECT_THAT(Message(diagnosis), HasSubstr("has not arrived after"));
    EXPECT_THAT(RanksOf(diagnosis), ElementsAre(2));
  }
}

// What a rank says that would have waited for 20s, had another not given up before.
backends::Failure EndedByAnother(std::vector<int> awaited, std::vector<int> lost) {
  backends::Failure failure = Lost(std::move(awaited), std::move(lost));
  failure.timeout = absl::Seconds(20);
  return failure;
}

TEST(FailureReportTest, ATimeoutOfAnotherRankIsToldAsItsOwn) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 3);
  const auto diagnoses =
      DiagnoseAll(store, tables, {TimedOut({1, 2}), EndedByAnother({0, 2}, {0})});
  EXPECT_THAT(Message(diagnoses[0]),
              AllOf(HasSubstr("sum): rank 2 (host "), HasSubstr(" has not arrived after 1s"),
                    Not(HasSubstr("reported"))));
  EXPECT_THAT(
      Message(diagnoses[1]),
      AllOf(HasSubstr("sum) failed after 200ms: rank 0 (host "),
            HasSubstr(" reported: all_reduce #5 (float32, 10 elements, sum): rank 2 (host "),
            HasSubstr(" has not arrived after 1s"), Not(HasSubstr("20s"))));
  EXPECT_EQ(KindOf(diagnoses[1]), ErrorKind::kTimeout);
  EXPECT_THAT(RanksOf(diagnoses[1]), ElementsAre(2));
}

TEST(FailureReportTest, ARankThatComesAfterAnotherGaveUpTellsThatOnesTimeout) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 2);
  backends::FailureReporter(store, tables[0]).Report(TimedOut({1}));
  const absl::Status diagnosis =
      backends::FailureReporter(store, tables[1]).Diagnose(EndedByAnother({0}, {0}));
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kTimeout);
  EXPECT_THAT(Message(diagnosis),
              AllOf(HasSubstr("sum) failed after 200ms: rank 0 (host "),
                    HasSubstr(" reported: all_reduce #5 (float32, 10 elements, sum): "
                              "not complete after 1s"),
                    Not(HasSubstr("20s"))));
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(0));
}

// Rank 0 waits for rank 3, which is late, and has not heard that ranks 1 and 2 differ.
TEST(FailureReportTest, AMismatchThatAnotherRankHasFoundExplainsMoreThanATimeout) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 5);
  backends::Failure differs = TimedOut({0, 2, 3, 4});
  differs.cause = WithRanks(MismatchError("ranks 1 and 2 differ"), {1, 2});
  const auto diagnoses = DiagnoseAll(
      store, tables,
      {TimedOut({1, 2, 3, 4}), differs, differs, Lost({0, 1, 2, 4}, {0}), Lost({0, 1, 2, 3}, {0})});
  for (const absl::Status& diagnosis : diagnoses) {
    EXPECT_EQ(KindOf(diagnosis), ErrorKind::kMismatch) << diagnosis;
    EXPECT_THAT(Message(diagnosis), HasSubstr("ranks 1 and 2 differ"));
    EXPECT_THAT(RanksOf(diagnosis), ElementsAre(1, 2)) << diagnosis;
  }
}

TEST(FailureReportTest, ARankThatHasLeftIsNotWaitedFor) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 2);
  backends::Failure failure = Lost({1});
  failure.left = {{1, "it is tired"}};
  const absl::Time start = absl::Now();
  const absl::Status diagnosis = backends::FailureReporter(store, tables[0]).Diagnose(failure);
  EXPECT_LT(absl::Now() - start, backends::FailureReporter::kGrace);
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kBackend);
  EXPECT_THAT(Message(diagnosis),
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("has left the group: it is tired")));
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(1));
}

TEST(FailureReportTest, ARankThatOnlyANeighbourMissesIsNamedOnAllRanks) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 4);
  // 0 waits for 1, 1 for 2, 2 for 3, which is silent: each closes its connections in turn.
  for (const absl::Status& diagnosis :
       DiagnoseAll(store, tables, {Lost({1}, {1}), Lost({2}, {2}), Lost({3}, {3})})) {
    EXPECT_THAT(Message(diagnosis), HasSubstr("rank 3 (host "));
    EXPECT_THAT(Message(diagnosis), Not(HasSubstr("rank 1 (host ")));
  }
}

// Ranks 0 and 1 are on one host, 2 and 3 on another, and the cable between them is cut. Each fails
// once it has missed one of the others, which need not have missed it.
TEST(FailureReportTest, ConnectionsThatOneSideAloneHasLostAreNamedIfNothingElseIsKnown) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 4);
  for (const absl::Status& diagnosis : DiagnoseAll(store, tables,
                                                   {Lost({1, 2, 3}, {2}), Lost({0, 2, 3}, {}),
                                                    Lost({0, 1, 3}, {1}), Lost({0, 1, 2}, {1})})) {
    EXPECT_EQ(KindOf(diagnosis), ErrorKind::kNetwork);
    EXPECT_THAT(Message(diagnosis), AllOf(HasSubstr("between rank 0 (host "),
                                          HasSubstr(" and rank 2 (host "), HasSubstr("broke")));
    EXPECT_THAT(RanksOf(diagnosis), ElementsAre(0, 1, 2, 3));
  }
}

TEST(FailureReportTest, TheCauseThatAnotherRankToldIsQuoted) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 2);
  backends::Failure told = Lost({0});
  told.operation = "recv #3 from rank 0";
  told.cause = BackendError("the disk is full");
  backends::FailureReporter(store, tables[1]).Report(told);
  const absl::Status diagnosis = backends::FailureReporter(store, tables[0]).Diagnose(Lost({1}));
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kBackend);
  EXPECT_THAT(Message(diagnosis),
              AllOf(HasSubstr("rank 1 (host "),
                    HasSubstr("reported: recv #3 from rank 0: the disk is full")));
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(1));
}

// A store in which something happens right after the first look at the ranks' reports.
class EventfulStore final : public ForwardingStore {
 public:
  EventfulStore(std::shared_ptr<Store> store, std::function<void()> event)
      : ForwardingStore(std::move(store)), event_(std::move(event)) {}

  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override {
    auto keys = store().Keys(prefix);
    if (auto event = std::exchange(event_, nullptr)) event();
    return keys;
  }

 private:
  std::function<void()> event_;
};

TEST(FailureReportTest, ARankThatReportsAndEndsAtOnceIsNotCalledDead) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  auto store = std::make_shared<HashStore>();
  // Rank 1's entry in the store says that it is the child; it reports through a table of its own.
  Peer peer = base::IdentifyThisProcess().value();
  peer.pid = child;
  peer.started = base::ReadProcess(child).value().started;
  ASSERT_TRUE(store->Set("member/1", peer.Serialize() + "\nprotocol 12\n\n\n").ok());
  const auto table =
      backends::PeerTable::Join(*store, 0, 2, std::string(), Deadline(absl::Seconds(30)));
  ASSERT_TRUE(table.ok()) << table.status();
  HashStore others;
  const backends::FailureReporter rank_1(store, JoinAll(others, 2)[1]);
  auto eventful = std::make_shared<EventfulStore>(store, [&] {
    backends::Failure told = Lost({0});
    told.cause = MismatchError("ranks 0 and 1 differ");
    rank_1.Report(told);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  const absl::Status diagnosis =
      backends::FailureReporter(eventful, *table).Diagnose(Lost({1}, {1}));
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kMismatch) << diagnosis;
  EXPECT_THAT(Message(diagnosis), AllOf(HasSubstr("ranks 0 and 1 differ"), Not(HasSubstr("died"))));
}

TEST(FailureReportTest, TheRanksThatAnotherRankBlamesAreToldAsItDid) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 4);
  backends::Failure told = Lost({0});
  told.operation = "recv #3 from rank 0";
  told.cause = WithRanks(MismatchError("ranks 2 and 3 differ"), {2, 3});
  backends::FailureReporter(store, tables[1]).Report(told);
  backends::Failure own = Lost({1});
  own.call = {"all_reduce", 5};
  const absl::Status diagnosis = backends::FailureReporter(store, tables[0]).Diagnose(own);
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kMismatch);
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(2, 3));
  EXPECT_THAT(OriginOf(diagnosis)->operations,
              ElementsAre(ErrorOrigin::Operation{"all_reduce", 5}));
}

TEST(FailureReportTest, RanksInAReportThatTheGroupDoesNotHaveAreDropped) {
  auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 3);
  const std::string network = absl::StrCat(static_cast<int>(ErrorKind::kNetwork));
  ASSERT_TRUE(
      store->Set("report/1", network + "\n-1 2 3 1000000\n\n-1 3 1000000\n\nbarrier #5\n1s\n\nlost")
          .ok());
  const std::string backend = absl::StrCat(static_cast<int>(ErrorKind::kBackend));
  for (const char* key : {"report/-1", "report/3", "report/1000000"}) {
    ASSERT_TRUE(store->Set(key, backend + "\n\n\n\n\nbarrier #5\n1s\n0;0\nbroken").ok());
  }
  const absl::Status lost = backends::FailureReporter(store, tables[0]).Diagnose(Lost({1, 2}));
  EXPECT_EQ(KindOf(lost), ErrorKind::kNetwork) << lost;
  EXPECT_THAT(RanksOf(lost), ElementsAre(2));
  ASSERT_TRUE(store->Set("report/2", backend + "\n\n\n\n\nbarrier #5\n1s\n1,3,9;0\nbroken").ok());
  const absl::Status told = backends::FailureReporter(store, tables[0]).Diagnose(Lost({1, 2}));
  EXPECT_EQ(KindOf(told), ErrorKind::kBackend) << told;
  EXPECT_THAT(RanksOf(told), ElementsAre(1));
}

TEST(FailureReportTest, AStoreThatIsGoneIsNamedAndHoldsNobodyUp) {
  HashStore healthy;
  const auto tables = JoinAll(healthy, 2);
  auto store = std::make_shared<HangingStore>();
  const absl::Time start = absl::Now();
  const absl::Status diagnosis =
      backends::FailureReporter(store, tables[1]).Diagnose(Lost({0}, {0}));
  const absl::Duration took = absl::Now() - start;
  store->Release();
  EXPECT_LT(took, backends::FailureReporter::kBound + absl::Seconds(5));
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kNetwork);
  EXPECT_THAT(Message(diagnosis),
              AllOf(HasSubstr("rank 0 (host "),
                    HasSubstr("the store at tcp://10.0.0.1:29500 does not answer either")));
}

TEST(FailureReportTest, AHostThatDidNotAnswerIsNotSaidToHaveClosedTheConnection) {
  const auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 2);
  backends::Failure failure = Lost({0}, {0});
  failure.given_up[0] = "not answered for 5s";
  const absl::Status diagnosis = backends::FailureReporter(store, tables[1]).Diagnose(failure);
  EXPECT_THAT(
      Message(diagnosis),
      AllOf(HasSubstr("did not report and must be presumed lost; rank 0 (host "),
            HasSubstr("had not answered for 5s"), Not(HasSubstr("closed the connection,"))));
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(0));
}

TEST(FailureReportTest, WithoutAStoreATimeoutNamesTheRanksThatTheTransportWaitsFor) {
  HashStore healthy;
  const auto tables = JoinAll(healthy, 3);
  const auto hanging = std::make_shared<HangingStore>();
  backends::Failure failure = TimedOut({0, 2});
  failure.cause = WithRanks(TimeoutError("not complete after 1s: no data of rank 0"), {0});
  const absl::Status diagnosis =
      backends::FailureReporter(std::make_shared<PrefixStore>("group", hanging), tables[1])
          .Diagnose(failure);
  hanging->Release();
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kTimeout);
  EXPECT_THAT(RanksOf(diagnosis), ElementsAre(0));
  EXPECT_THAT(Message(diagnosis),
              AllOf(HasSubstr("no data of rank 0"), HasSubstr("store at tcp://10.0.0.1:29500"),
                    Not(HasSubstr("prefix"))));
}

TEST(FailureReportTest, WhereNoThreadCanBeStartedTheCauseIsTold) {
  const auto store = std::make_shared<HashStore>();
  const auto tables = JoinAll(*store, 2);
  const backends::FailureReporter reporter(store, tables[1]);
  absl::Status diagnosis;
  {
    const ScopedFault no_thread("pthread_create");
    reporter.ReportIdle("it is in no operation");
    diagnosis = reporter.Diagnose(Lost({0}, {0}));
  }
  EXPECT_EQ(KindOf(diagnosis), ErrorKind::kNetwork);
  EXPECT_THAT(Message(diagnosis), AllOf(HasSubstr("rank 0 (host "),
                                        HasSubstr("cannot start a thread for reports of failures"),
                                        Not(HasSubstr("does not answer"))));
}

TEST(PeerTableTest, ARankThatCannotConnectSaysSoToAll) {
  HashStore store;
  const Deadline deadline(absl::Seconds(30));
  const absl::Status own = BackendError("too many open files");
  EXPECT_EQ(backends::PeerTable::Join(store, 1, 2, own, deadline).status(), own);
  const absl::Status told = backends::PeerTable::Join(store, 0, 2, "", deadline).status();
  EXPECT_EQ(KindOf(told), ErrorKind::kBackend);
  EXPECT_THAT(Message(told),
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("): too many open files")));
}

}  // namespace
}  // namespace syncline
