#include "launch/agent.h"

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using Kind = AgentCommand::Kind;
using State = Agent::State;
using Names = std::vector<std::string>;

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

WorkerExit Code(int local_rank, int code) { return {local_rank, code, 0}; }
WorkerExit Killed(int local_rank, int signal) { return {local_rank, 0, signal}; }
WorkerExit Recorded(WorkerExit exit, WorkerExit::Record record, absl::Time failed_at) {
  exit.record = record;
  exit.failed_at = failed_at;
  return exit;
}

std::vector<int> Ranks(const std::vector<WorkerExit>& exits) {
  std::vector<int> ranks;
  for (const WorkerExit& exit : exits) ranks.push_back(exit.local_rank);
  return ranks;
}

// "join", "start", "groups 15", "workers 10", "leftovers", "kill", "report", "done".
Names Describe(const Agent::Commands& commands) {
  Names names;
  for (const AgentCommand& command : commands) {
    switch (command.kind) {
      case Kind::kJoin:
        names.push_back("join");
        break;
      case Kind::kReportFailure:
        names.push_back("report");
        break;
      case Kind::kReportDone:
        names.push_back("done");
        break;
      case Kind::kStartWorkers:
        names.push_back("start");
        break;
      case Kind::kSignalGroups:
        names.push_back(absl::StrCat("groups ", command.signal));
        break;
      case Kind::kSignalWorkers:
        names.push_back(absl::StrCat("workers ", command.signal));
        break;
      case Kind::kTerminateLeftovers:
        names.push_back("leftovers");
        break;
      case Kind::kKillEverything:
        names.push_back("kill");
        break;
    }
  }
  return names;
}

class AgentTest : public testing::Test {
 protected:
  Agent Started(int workers) {
    AgentOptions options;
    options.workers = workers;
    options.shutdown_timeout = absl::Seconds(20);
    Agent agent(options, clock_);
    EXPECT_EQ(Describe(agent.Start()), Names{"join"});
    EXPECT_EQ(agent.state(), State::kJoining);
    EXPECT_EQ(Describe(agent.OnRound()), Names{"start"});
    EXPECT_EQ(agent.state(), State::kRunning);
    return agent;
  }

  // The end of the time in which others may fail by themselves.
  Names Settle(Agent& agent) {
    EXPECT_EQ(agent.state(), State::kSettling);
    clock_.Advance(AgentOptions().settle_time);
    return Describe(agent.OnDeadline());
  }

  FakeClock clock_;
};

TEST_F(AgentTest, WaitsWithoutADeadlineWhileWorkersRun) {
  Agent agent = Started(2);
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
  clock_.Advance(absl::Hours(1000));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{});
  EXPECT_EQ(agent.state(), State::kRunning);
}

TEST_F(AgentTest, SucceedsWhenAllWorkersExitWithZeroAndNothingIsLeft) {
  Agent agent = Started(2);
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(1, 0)})), Names{});
  EXPECT_EQ(agent.state(), State::kRunning);
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(0, 0)})), Names{"leftovers"});
  EXPECT_EQ(agent.state(), State::kDraining);
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"done"});
  EXPECT_EQ(agent.state(), State::kFinishing);
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
  EXPECT_EQ(Describe(agent.OnClosed(0)), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 0);
  EXPECT_FALSE(agent.failure().has_value());
}

TEST_F(AgentTest, AFailureStopsTheOthersAndKillsThemAfterOneSecond) {
  Agent agent = Started(3);
  clock_.Advance(absl::Seconds(7));
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(1, 3)})), Names{});
  EXPECT_EQ(agent.deadline(), clock_.Now() + AgentOptions().settle_time);
  EXPECT_EQ(Settle(agent), (Names{"groups 15", "report"}));
  EXPECT_EQ(agent.state(), State::kStopping);
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{});
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{"kill"});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Killed(0, SIGKILL)})), Names{});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Killed(2, SIGKILL)})), Names{"kill"});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"join"});
  EXPECT_EQ(agent.exit_code(), 3);
  ASSERT_TRUE(agent.failure().has_value());
  EXPECT_EQ(agent.failure()->cause.local_rank, 1);
  EXPECT_EQ(agent.failure()->after, absl::Seconds(7));
  EXPECT_EQ(Ranks(agent.failure()->stopped), (std::vector<int>{0, 2}));
  EXPECT_TRUE(agent.failure()->also_failed.empty());
}

TEST_F(AgentTest, TheFirstFailureIsTheCauseAndLaterOnesAreItsConsequence) {
  Agent agent = Started(3);
  agent.OnWorkersExited({Code(2, 9)});
  clock_.Advance(absl::Milliseconds(1));
  agent.OnWorkersExited({Code(0, 1)});
  Settle(agent);
  EXPECT_EQ(Describe(agent.OnWorkersExited({Killed(1, SIGSEGV)})), Names{"leftovers"});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 9);
  EXPECT_EQ(agent.failure()->cause.local_rank, 2);
  EXPECT_EQ(Ranks(agent.failure()->also_failed), std::vector<int>{0});
  EXPECT_EQ(Ranks(agent.failure()->stopped), std::vector<int>{1});
}

TEST_F(AgentTest, APeersErrorIsNotTheCauseThoughItIsSeenFirst) {
  Agent agent = Started(3);
  clock_.Advance(absl::Seconds(2));
  agent.OnWorkersExited(
      {Recorded(Code(0, 1), WorkerExit::Record::kPeerError, clock_.Now() - absl::Seconds(1))});
  EXPECT_EQ(agent.failure()->cause.local_rank, 0);  // So far.
  clock_.Advance(absl::Milliseconds(100));
  agent.OnWorkersExited({Code(1, 42)});
  agent.OnWorkersExited({Recorded(Code(2, 1), WorkerExit::Record::kPeerError, clock_.Now())});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 42);
  EXPECT_EQ(agent.failure()->cause.local_rank, 1);
  EXPECT_EQ(agent.failure()->after, absl::Milliseconds(2100));
  EXPECT_EQ(Ranks(agent.failure()->also_failed), (std::vector<int>{0, 2}));
}

TEST_F(AgentTest, TheEarliestRecordedErrorIsTheCauseInWhateverOrderWorkersEnd) {
  Agent agent = Started(3);
  const absl::Time early = clock_.Now() + absl::Milliseconds(10);
  clock_.Advance(absl::Milliseconds(30));
  agent.OnWorkersExited({Killed(0, SIGABRT)});
  agent.OnWorkersExited({Recorded(Code(2, 5), WorkerExit::Record::kError, clock_.Now())});
  agent.OnWorkersExited({Recorded(Code(1, 6), WorkerExit::Record::kError, early)});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 6);
}

TEST_F(AgentTest, AWorkerThatWasStillOnItsWayOutWhenToldToStopIsTheCause) {
  Agent agent = Started(2);
  const absl::Time early = clock_.Now();
  clock_.Advance(absl::Milliseconds(10));
  agent.OnWorkersExited({Recorded(Code(0, 1), WorkerExit::Record::kPeerError, clock_.Now())});
  EXPECT_EQ(Settle(agent), Names{});  // The cause is given a second chance to end by itself.
  EXPECT_EQ(Settle(agent), (Names{"groups 15", "report"}));
  agent.OnWorkersExited({Recorded(Killed(1, SIGTERM), WorkerExit::Record::kError, early)});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.failure()->cause.local_rank, 1);
  EXPECT_EQ(agent.exit_code(), 1);  // Not that of the launcher's own signal.
  EXPECT_TRUE(agent.failure()->stopped.empty());
}

TEST_F(AgentTest, WithoutAReaderTheWorkersAreStoppedAsByTerm) {
  Agent agent = Started(2);
  EXPECT_EQ(Describe(agent.OnSignal(SIGPIPE)), Names{"groups 15"});
  agent.OnWorkersExited({Killed(0, SIGTERM), Killed(1, SIGTERM)});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 128 + SIGPIPE);
}

TEST_F(AgentTest, AmongExitsAtOneMomentAKilledWorkerIsTheCause) {
  Agent agent = Started(3);
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(0, 1), Code(1, 0), Killed(2, SIGKILL)})),
            Names{"leftovers"});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.failure()->cause.local_rank, 2);
  EXPECT_EQ(Ranks(agent.failure()->also_failed), std::vector<int>{0});
  EXPECT_TRUE(agent.failure()->stopped.empty());
  EXPECT_EQ(agent.exit_code(), 128 + SIGKILL);
}

TEST_F(AgentTest, RanksThatFinishedBeforeTheFailureWereNotStoppedByIt) {
  Agent agent = Started(2);
  agent.OnWorkersExited({Code(0, 0)});
  agent.OnWorkersExited({Code(1, 4)});
  EXPECT_TRUE(agent.failure()->stopped.empty());
}

TEST_F(AgentTest, JoinsAgainOnceNothingOfTheFailedRoundIsLeft) {
  Agent agent = Started(2);
  agent.OnWorkersExited({Code(1, 3)});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Killed(0, SIGTERM)})), Names{"leftovers"});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"join"});
  EXPECT_EQ(agent.state(), State::kJoining);
  EXPECT_EQ(agent.failure()->cause.local_rank, 0);
  EXPECT_EQ(Describe(agent.OnRound()), Names{"start"});
  EXPECT_EQ(agent.state(), State::kRunning);
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
  EXPECT_FALSE(agent.failure().has_value());
  agent.OnWorkersExited({Code(0, 0), Code(1, 0)});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"done"});
}

TEST_F(AgentTest, WhenTheJobIsClosedAfterAFailureItsCodeCounts) {
  Agent agent = Started(1);
  agent.OnWorkersExited({Code(0, 10)});
  agent.OnNothingLeft();
  EXPECT_EQ(Describe(agent.OnClosed(42)), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 42);
}

TEST_F(AgentTest, ARoundThatIsOverStopsTheWorkersAndJoinsTheNext) {
  Agent agent = Started(2);
  EXPECT_EQ(Describe(agent.OnRoundOver()), Names{"groups 15"});
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(1));
  agent.OnWorkersExited({Killed(0, SIGTERM)});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(1, 1)})), Names{"leftovers"});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"join"});
  EXPECT_FALSE(agent.failure().has_value());  // They were asked to stop.
}

TEST_F(AgentTest, AWorkerThatHadFailedBeforeTheRoundWasOverIsStillTheCause) {
  Agent agent = Started(2);
  const absl::Time early = clock_.Now();
  clock_.Advance(absl::Milliseconds(5));
  agent.OnRoundOver();
  agent.OnWorkersExited({Recorded(Code(1, 9), WorkerExit::Record::kError, early)});
  agent.OnWorkersExited({Killed(0, SIGTERM)});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"join"});
  ASSERT_TRUE(agent.failure().has_value());
  EXPECT_EQ(agent.failure()->cause.local_rank, 1);
}

TEST_F(AgentTest, ARoundThatIsOverWhileAFailureSettlesIsStoppedAtOnce) {
  Agent agent = Started(2);
  agent.OnWorkersExited({Code(0, 3)});
  EXPECT_EQ(Describe(agent.OnRoundOver()), (Names{"groups 15", "report"}));
  EXPECT_EQ(Describe(agent.OnRoundOver()), Names{});
}

TEST_F(AgentTest, ANodeThatIsDoneJoinsAgainIfTheRoundIsOver) {
  Agent agent = Started(1);
  agent.OnWorkersExited({Code(0, 0)});
  agent.OnNothingLeft();
  EXPECT_EQ(Describe(agent.OnRoundOver()), Names{"join"});
  EXPECT_EQ(Describe(agent.OnRound()), Names{"start"});
}

TEST_F(AgentTest, WhenTheJobIsClosedWhileWorkersRunTheyAreStopped) {
  Agent agent = Started(1);
  EXPECT_EQ(Describe(agent.OnClosed(7)), Names{"groups 15"});
  agent.OnWorkersExited({Killed(0, SIGTERM)});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 7);
}

TEST_F(AgentTest, AStopSignalWithoutWorkersEndsTheNodeAtOnce) {
  AgentOptions options;
  Agent agent(options, clock_);
  agent.Start();
  EXPECT_EQ(Describe(agent.OnSignal(SIGTERM)), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 128 + SIGTERM);
  EXPECT_EQ(Describe(agent.OnRound()), Names{});
  EXPECT_EQ(Describe(agent.OnClosed(0)), Names{});
}

TEST_F(AgentTest, AStopSignalIsForwardedAndWorkersGetTheWholeShutdownTimeout) {
  Agent agent = Started(2);
  EXPECT_EQ(Describe(agent.OnSignal(SIGTERM)), Names{"groups 15"});
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(20));
  clock_.Advance(absl::Seconds(19));
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(0, 0)})), Names{});
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(1, 77)})), Names{"leftovers"});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 128 + SIGTERM);
  EXPECT_FALSE(agent.failure().has_value());  // Exits after a stop signal are no failures.
}

TEST_F(AgentTest, OnlyASecondInterruptKillsAtOnce) {
  Agent agent = Started(1);
  EXPECT_EQ(Describe(agent.OnSignal(SIGINT)), Names{"groups 2"});
  EXPECT_EQ(Describe(agent.OnSignal(SIGTERM)), Names{});
  EXPECT_EQ(Describe(agent.OnSignal(SIGINT)), Names{"kill"});
  agent.OnWorkersExited({Killed(0, SIGKILL)});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 128 + SIGINT);
}

TEST_F(AgentTest, TheGraceAfterAFailureIsAnOptionThatHoldsForRoundsAndLeftoversToo) {
  AgentOptions options;
  options.failure_grace = absl::Seconds(7);
  options.workers = 2;
  for (const bool has_failed : {true, false}) {
    Agent agent(options, clock_);
    agent.Start();
    agent.OnRound();
    if (has_failed) {
      agent.OnWorkersExited({Code(0, 1)});
      Settle(agent);
    } else {
      agent.OnRoundOver();
    }
    EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(7));
  }
  Agent agent(options, clock_);
  agent.Start();
  agent.OnRound();
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(0, 0), Code(1, 0)})), Names{"leftovers"});
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(7));
}

TEST_F(AgentTest, WithoutGraceTheOthersAreKilledAtOnce) {
  AgentOptions options;
  options.failure_grace = absl::ZeroDuration();
  options.workers = 2;
  Agent agent(options, clock_);
  agent.Start();
  agent.OnRound();
  agent.OnWorkersExited({Code(0, 1)});
  EXPECT_EQ(Settle(agent), (Names{"groups 15", "report"}));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{"kill"});
}

TEST_F(AgentTest, UserSignalsReachWorkersWithoutStoppingThem) {
  Agent agent = Started(2);
  EXPECT_EQ(Describe(agent.OnSignal(SIGUSR1)), (Names{"workers 10"}));
  EXPECT_EQ(Describe(agent.OnSignal(SIGUSR2)), (Names{"workers 12"}));
  EXPECT_EQ(agent.state(), State::kRunning);
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
}

TEST_F(AgentTest, WhichSignalsStopAndWhichArePassedOnAreOptions) {
  AgentOptions options;
  options.stop_signals = {SIGUSR2};
  options.forwarded_signals = {SIGHUP, SIGINT};
  Agent agent(options, clock_);
  agent.Start();
  agent.OnRound();
  EXPECT_EQ(Describe(agent.OnSignal(SIGHUP)), Names{"workers 1"});
  EXPECT_EQ(Describe(agent.OnSignal(SIGUSR1)), Names{});
  EXPECT_EQ(Describe(agent.OnSignal(SIGINT)), Names{"workers 2"});
  EXPECT_EQ(agent.state(), State::kRunning);
  EXPECT_EQ(Describe(agent.OnSignal(SIGUSR2)), Names{"groups 12"});
  EXPECT_EQ(agent.state(), State::kStopping);
  EXPECT_EQ(Describe(agent.OnSignal(SIGINT)), Names{"workers 2"});  // Does not kill.
  EXPECT_EQ(Describe(agent.OnSignal(SIGUSR1)), Names{});
}

TEST_F(AgentTest, AStopSignalDuringAFailurePreventsTheRestart) {
  Agent agent = Started(2);
  agent.OnWorkersExited({Code(1, 3)});
  EXPECT_EQ(Describe(agent.OnSignal(SIGTERM)), (Names{"groups 15", "report"}));
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Seconds(1));
  agent.OnWorkersExited({Killed(0, SIGTERM)});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 3);
}

TEST_F(AgentTest, ASignalAfterTheLastWorkersSuccessDoesNotSpoilIt) {
  Agent agent = Started(1);
  agent.OnWorkersExited({Code(0, 0)});
  EXPECT_EQ(Describe(agent.OnSignal(SIGTERM)), Names{});
  agent.OnNothingLeft();
  agent.OnClosed(0);
  EXPECT_EQ(agent.exit_code(), 0);
}

TEST_F(AgentTest, ASignalAfterTheLastWorkersSuccessEndsTheWaitForOtherNodes) {
  Agent agent = Started(1);
  agent.OnWorkersExited({Code(0, 0)});
  agent.OnSignal(SIGTERM);
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"done"});
  EXPECT_EQ(agent.deadline(), clock_.Now());
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 128 + SIGTERM);
}

TEST_F(AgentTest, LeftoversOfASuccessAreKilledAfterOneSecond) {
  Agent agent = Started(1);
  EXPECT_EQ(Describe(agent.OnWorkersExited({Code(0, 0)})), Names{"leftovers"});
  EXPECT_EQ(Describe(agent.OnLeftoverExited()), Names{});
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{"kill"});
  EXPECT_EQ(Describe(agent.OnLeftoverExited()), Names{"kill"});
  agent.OnNothingLeft();
  EXPECT_EQ(agent.exit_code(), 0);
  EXPECT_FALSE(agent.gave_up());
}

TEST_F(AgentTest, GivesUpOnAProcessThatSurvivesBeingKilled) {
  Agent agent = Started(2);
  agent.OnWorkersExited({Killed(0, SIGBUS)});
  Settle(agent);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{"kill"});
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Describe(agent.OnDeadline()), Names{});
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_TRUE(agent.gave_up());
  EXPECT_EQ(agent.exit_code(), 128 + SIGBUS);
}

TEST_F(AgentTest, AWorkerThatCannotBeStartedIsAFailureOfTheNode) {
  Agent agent = Started(3);
  EXPECT_EQ(Describe(agent.OnStartFailed()), Names{"kill"});
  EXPECT_EQ(Describe(agent.OnWorkersExited({Killed(0, SIGKILL)})), Names{});
  EXPECT_EQ(Describe(agent.OnNothingLeft()), Names{"join"});  // To tell the others.
  EXPECT_TRUE(agent.start_failed());
  agent.OnClosed(1);
  EXPECT_EQ(agent.state(), State::kFinished);
  EXPECT_EQ(agent.exit_code(), 1);
}

TEST_F(AgentTest, AShutdownTimeoutBelowTheFailureGraceHoldsForFailuresToo) {
  AgentOptions options;
  options.workers = 2;
  options.shutdown_timeout = absl::Milliseconds(100);
  Agent agent(options, clock_);
  agent.Start();
  agent.OnRound();
  agent.OnWorkersExited({Code(0, 1)});
  EXPECT_EQ(agent.deadline(), clock_.Now() + absl::Milliseconds(100));
}

}  // namespace
}  // namespace syncline::launch
