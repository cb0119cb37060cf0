// Backend auto over several hosts, some with several ranks: ranks that go on as soon as they have
// given their data. What others take of it, and when all hear that somebody has called something
// else, has died, is stopped, late or has left. run_ahead_test.cc has each rank on a host of its
// own, or all on one.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/log.h"
#include "syncline/op_kind.h"
#include "syncline/status.h"
#include "tests/backends/auto_workers.h"
#include "tests/support/operations.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);

void Print(const absl::Status& status) { std::printf("%s\n", status.ToString().c_str()); }

absl::Status Call(Backend& backend, const Worker& worker, const Spec& spec, uint64_t sequence,
                  absl::Duration timeout = kTimeout) {
  const Collective operation = Build(spec, worker.rank, worker.size);
  SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, operation, {sequence, Deadline(timeout)}).status());
  return Annotate(CheckDone(spec, operation, worker.rank, worker.size),
                  absl::StrCat(spec.ToString(), " #", sequence));
}

Spec Rooted(OpKind kind, int root, int64_t count = 5) {
  Spec spec{kind};
  spec.root = root;
  spec.count = count;
  return spec;
}

OpKind KindOfName(const std::string& name) {
  for (const OpKind kind : CollectiveKinds()) {
    if (Name(kind) == name) return kind;
  }
  std::abort();
}

// ---- What is taken.

// Runs of one operation and one root, which let ranks get far ahead; of other operations between,
// and of roots that are not leaders, in which all meet. Sizes on both sides of every way.
void RunMany(const Worker& worker) {
  constexpr OpKind kKinds[] = {OpKind::kBroadcast, OpKind::kReduce,       OpKind::kGather,
                               OpKind::kScatter,   OpKind::kAllReduce,    OpKind::kAllToAll,
                               OpKind::kBroadcast, OpKind::kScatter,      OpKind::kBarrier,
                               OpKind::kAllGather, OpKind::kReduceScatter};
  constexpr int64_t kCounts[] = {0, 1, 5, 16, 100, 1000, 4000, 12000, 20000};
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  std::mt19937 random(worker.size);  // The same on all ranks.
  Spec spec{OpKind::kBroadcast};
  for (uint64_t sequence = 0; sequence < 3000 && status.ok(); ++sequence) {
    if (sequence % 75 == 0) {
      spec = Spec{kKinds[random() % std::size(kKinds)]};
      spec.root = HasRoot(spec.kind) ? static_cast<int>(random() % worker.size) : 0;
      spec.op = spec.kind == OpKind::kReduce && random() % 2 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
    }
    // Mostly short ones, which go ahead.
    spec.count = kCounts[random() % (sequence % 3 == 0 ? std::size(kCounts) : 5)];
    // Some ranks are slow at times.
    if (random() % 500 == 0 && static_cast<int>(random() % worker.size) == worker.rank) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    status = Call(**backend, worker, spec, sequence);
  }
  Print(status);
}

class AutoAheadTest : public testing::TestWithParam<std::vector<int>> {};

INSTANTIATE_TEST_SUITE_P(Hosts, AutoAheadTest,
                         testing::Values(std::vector<int>{0, 0, 1, 1},
                                         std::vector<int>{0, 1, 1, 0, 0},
                                         std::vector<int>{0, 1, 2, 2},
                                         std::vector<int>{0, 1, 1, 2, 3, 4, 4}),
                         [](const auto& info) { return absl::StrCat("case_", info.index); });

TEST_P(AutoAheadTest, WhatIsTakenIsRightHoweverFarTheGiverIs) {
  Workers workers(GetParam(), "many", "");
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_EQ(workers.Output(rank), "OK\n") << "rank " << rank;
  }
}

// ---- Other calls. Ranks 0 and 1 are on one host, 2 and 3 on another, and so on.

const std::vector<int> kHosts = {0, 0, 1, 1};
const std::vector<int> kFourHosts = {0, 0, 1, 1, 2, 2, 3, 3};

// A rank that only gives hears of a mismatch so many calls later at most: 128 within its host,
// while its host's leader is 128 calls ahead of the others'.
constexpr uint64_t kAhead = 256;

// argument: operation, root, rank, what that rank does in the fourth call, and whether a barrier
// follows: "gather 0 3 count barrier".
void RunOdd(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const OpKind kind = KindOfName(words[0]);
  const int root = std::stoi(words[1]);
  const bool is_odd = std::stoi(words[2]) == worker.rank;
  const bool has_barrier = words[4] == "barrier";
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  uint64_t sequence = 0;
  for (; sequence < 3 && status.ok(); ++sequence) {
    status = Call(**backend, worker, Rooted(kind, root), sequence);
  }
  // All have come so far, so that what fails is the fourth call or one after it.
  if (status.ok()) status = Call(**backend, worker, Spec{OpKind::kBarrier}, sequence++);
  Spec spec = Rooted(kind, root);
  if (is_odd && words[3] == "count") spec.count = 6;
  if (is_odd && words[3] == "root") spec.root = 2 - root;
  if (is_odd && words[3] == "kind") {
    spec.kind = kind == OpKind::kGather ? OpKind::kReduce : OpKind::kGather;
  }
  // Results are not looked at: whoever makes another call gets none that is right.
  const auto call = [&](const Spec& made) {
    return RunAndWait(**backend, Build(made, worker.rank, worker.size),
                      {sequence++, Deadline(absl::Seconds(30))})
        .status();
  };
  if (status.ok()) status = call(spec);
  while (status.ok() && !has_barrier && sequence <= 4 + kAhead) status = call(Rooted(kind, root));
  if (status.ok() && has_barrier) status = call(Spec{OpKind::kBarrier});
  Print(status);
}

// Operation, root, rank, what it does, what follows.
using Odd = std::vector<std::string>;

std::vector<Odd> Odds() {
  std::vector<Odd> odds;
  for (const char* kind : {"broadcast", "reduce", "gather", "scatter"}) {
    for (const char* rank : {"1", "2", "3"}) {
      for (const char* what : {"count", "kind"}) odds.push_back({kind, "0", rank, what, "barrier"});
    }
    odds.push_back({kind, "2", "0", "root", "barrier"});
    odds.push_back({kind, "0", "3", "count", "more"});
    odds.push_back({kind, "0", "2", "root", "more"});
  }
  return odds;
}

void CheckOdds(const std::vector<int>& hosts, const std::vector<Odd>& odds) {
  for (const Odd& odd : odds) {
    SCOPED_TRACE(absl::StrJoin(odd, " "));
    Workers workers(hosts, "odd", absl::StrJoin(odd, " "));
    const std::string kind = odd[3] != "kind" ? odd[0] : odd[0] == "gather" ? "reduce" : "gather";
    for (int rank = 0; rank < workers.size(); ++rank) {
      EXPECT_THAT(workers.Output(rank),
                  AllOf(StartsWith("FAILED_PRECONDITION"),
                        HasSubstr(absl::StrCat("rank ", odd[2], " called ", kind, " #4")),
                        HasSubstr(absl::StrCat("called ", odd[0], " #4"))))
          << "rank " << rank;
    }
  }
}

TEST(AutoAheadMismatchTest, EveryRankQuotesTheTwoCallsAtTheNextBarrierOrSomeCallsOn) {
  CheckOdds(kHosts, Odds());
}

// Calls go along a tree, and leaders meet through others. Rank 4 passes on to rank 6.
TEST(AutoAheadMismatchTest, SoItDoesOverFourHosts) {
  std::vector<Odd> odds;
  for (const char* kind : {"broadcast", "reduce", "gather", "scatter"}) {
    for (const char* rank : {"4", "7"}) {
      for (const char* what : {"count", "kind"}) odds.push_back({kind, "0", rank, what, "barrier"});
    }
    odds.push_back({kind, "2", "0", "root", "barrier"});
    odds.push_back({kind, "0", "5", "count", "more"});
  }
  CheckOdds(kFourHosts, odds);
}

// ---- Ranks that go.

// The root gives, or all but the root do, and leave at once; then the others take. argument:
// operation and root.
void GiveAndLeave(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const OpKind kind = KindOfName(words[0]);
  const int root = std::stoi(words[1]);
  const bool root_gives = kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  if (status.ok()) status = Call(**backend, worker, Spec{OpKind::kBarrier}, 0);
  const bool gives = (worker.rank == root) == root_gives;
  if (!gives) absl::SleepFor(absl::Milliseconds(300));
  for (uint64_t sequence = 1; sequence <= 20 && status.ok(); ++sequence) {
    status = Call(**backend, worker, Rooted(kind, root), sequence);
  }
  Print(status);
}

TEST(AutoAheadLeaveTest, WhatARankHasGivenArrivesThoughItHasLeft) {
  for (const std::vector<int>& hosts : {kHosts, kFourHosts}) {
    for (const char* kind : {"broadcast", "reduce", "gather", "scatter"}) {
      for (const int root : {0, 2}) {
        Workers workers(hosts, "leave", absl::StrCat(kind, " ", root));
        for (int rank = 0; rank < workers.size(); ++rank) {
          EXPECT_EQ(workers.Output(rank), "OK\n")
              << kind << " to " << root << ", rank " << rank << " of " << workers.size();
        }
      }
    }
  }
}

// Rank 0 gives and leaves, and the others take after it has gone. The hosts of all keep little, or
// those of the others, which rank 0 cannot see. argument: "all" or "others", and how many bytes.
void GiveToSmallBuffers(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  if (words[0] == "all" || worker.rank != 0) {
    setenv("SYNCLINE_SOCKET_BUFFER", words[1].c_str(), 1);
  }
  const int64_t count = words[0] == "all" ? 5 : 300;
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  if (status.ok()) status = Call(**backend, worker, Spec{OpKind::kBarrier}, 0);
  if (worker.rank != 0) absl::SleepFor(absl::Seconds(4));
  for (uint64_t sequence = 1; sequence <= 128 && status.ok(); ++sequence) {
    status = Call(**backend, worker, Rooted(OpKind::kBroadcast, 0, count), sequence);
  }
  Print(status);
}

TEST(AutoAheadLeaveTest, SoItDoesWhereHostsKeepLittle) {
  // The groups wait together, which takes no processor.
  std::vector<std::pair<std::string, std::unique_ptr<Workers>>> groups;
  for (const char* argument : {"others 8192", "all 4096"}) {
    for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, kHosts}) {
      groups.emplace_back(argument, std::make_unique<Workers>(hosts, "small buffers", argument));
    }
  }
  for (const auto& [argument, workers] : groups) {
    for (int rank = 0; rank < workers->size(); ++rank) {
      EXPECT_EQ(workers->Output(rank), "OK\n")
          << argument << ", rank " << rank << " of " << workers->size();
    }
  }
}

// All call an operation again and again, of which one rank stays out after the third call.
// argument: operation, root, rank, and what it does: stays away, leaves, or is stopped or killed.
void RunWithoutOne(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const Spec spec = Rooted(KindOfName(words[0]), std::stoi(words[1]));
  const bool is_absent = std::stoi(words[2]) == worker.rank;
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  for (uint64_t sequence = 0; status.ok(); ++sequence) {
    if (sequence == 3) {
      status = Call(**backend, worker, Spec{OpKind::kBarrier}, sequence);
      worker.store->Set(absl::StrCat("there/", worker.rank), "").IgnoreError();
      if (is_absent && words[3] == "leave") backend->reset();
      if (is_absent) pause();
      continue;
    }
    status = Call(
        **backend, worker, spec, sequence,
        sequence < 3 || words[3] == "kill" || words[3] == "leave" ? kTimeout : absl::Seconds(2));
  }
  Print(status);
}

// Until all are past the third call.
void AwaitThere(Workers& workers) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < workers.size(); ++rank) keys.push_back(absl::StrCat("there/", rank));
  EXPECT_TRUE(workers.store().Wait(keys, absl::Seconds(60)).ok());
}

// Which ranks stay out, one in each group.
struct Absence {
  const char* name;
  std::vector<int> hosts;
  std::vector<int> roots;
  std::vector<int> absent;
};

class AutoAheadAbsenceTest : public testing::TestWithParam<std::tuple<Absence, const char*>> {
 protected:
  static const char* call() { return std::get<1>(GetParam()); }

  // Calls check(rank, what it has printed) for all ranks but the absent one, for each root and each
  // absent rank of the operation.
  static void OnEach(const std::string& what, int signal,
                     const std::function<void(const Workers&, int, const std::string&)>& check) {
    const Absence& absence = std::get<0>(GetParam());
    for (const int root : absence.roots) {
      // Each group is brought to wait before the next is made; they wait together for their
      // timeouts, which takes no processor.
      std::vector<std::unique_ptr<Workers>> groups;
      for (const int absent : absence.absent) {
        groups.push_back(std::make_unique<Workers>(
            absence.hosts, "without", absl::StrCat(call(), " ", root, " ", absent, " ", what)));
        AwaitThere(*groups.back());
        if (signal != 0) groups.back()->Signal(absent, signal);
      }
      for (size_t i = 0; i < groups.size(); ++i) {
        const int absent = absence.absent[i];
        SCOPED_TRACE(absl::StrCat("root ", root, ", without rank ", absent));
        Workers& workers = *groups[i];
        for (int rank = 0; rank < workers.size(); ++rank) {
          if (rank != absent) check(workers, absent, workers.Output(rank));
        }
      }
    }
  }
};

const auto kNameOfAbsence =
    [](const testing::TestParamInfo<AutoAheadAbsenceTest::ParamType>& info) {
      return absl::StrCat(std::get<0>(info.param).name, std::get<1>(info.param));
    };

INSTANTIATE_TEST_SUITE_P(
    Calls, AutoAheadAbsenceTest,
    testing::Combine(testing::Values(Absence{"", kHosts, {0, 2}, {0, 1, 2, 3}}),
                     testing::Values("broadcast", "reduce", "gather", "scatter")),
    kNameOfAbsence);

// Calls along a tree, and those in which leaders meet through others. The absent rank is the root,
// which leads its host; a leader that passes on, or one whose host does not lead; or no leader.
INSTANTIATE_TEST_SUITE_P(
    CallsOfFourHosts, AutoAheadAbsenceTest,
    testing::Combine(testing::Values(Absence{"four_hosts_", kFourHosts, {0}, {0, 4, 5, 6}}),
                     testing::Values("broadcast", "reduce", "gather", "scatter", "all_reduce",
                                     "all_gather", "reduce_scatter", "barrier")),
    kNameOfAbsence);

TEST_P(AutoAheadAbsenceTest, ARankThatStaysAwayIsNamedOnEveryRank) {
  OnEach("stay", 0, [](const Workers& workers, int absent, const std::string& printed) {
    EXPECT_THAT(printed, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(call()),
                               HasSubstr(workers.Describe(absent)), HasSubstr("after 2s")));
  });
}

TEST_P(AutoAheadAbsenceTest, ARankThatIsStoppedIsNamedOnEveryRank) {
  OnEach("stop", SIGSTOP, [](const Workers& workers, int absent, const std::string& printed) {
    EXPECT_THAT(printed, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(call()),
                               HasSubstr(workers.Describe(absent))));
  });
}

TEST_P(AutoAheadAbsenceTest, ARankThatIsKilledIsNamedOnEveryRank) {
  OnEach("kill", SIGKILL, [](const Workers& workers, int absent, const std::string& printed) {
    EXPECT_THAT(printed, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(workers.Describe(absent))));
  });
}

TEST_P(AutoAheadAbsenceTest, ARankThatLeavesIsNamedOnEveryRank) {
  OnEach("leave", 0, [](const Workers& workers, int absent, const std::string& printed) {
    EXPECT_THAT(printed, HasSubstr(absl::StrCat(workers.Describe(absent), " has left the group")));
  });
}

// ---- Warnings of long waits.

// All call an operation, to which one rank comes once rank 0 has said that it is missing. argument:
// operation, root and the late rank. Prints what was said of the call.
void RunStalled(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const std::string late = absl::StrCat("missing: rank ", words[2], " (");
  setenv("SYNCLINE_STALL_WARNING", "0.3", 1);  // Before it is read.
  SetLogSink([&](LogLevel, absl::string_view line) {
    if (!absl::StrContains(line, absl::StrCat(" in ", words[0], " #1"))) return;
    std::printf("%s\n", std::string(line).c_str());
    const bool is_said = worker.rank == 0 && absl::StrContains(line, late);
    if (is_said) worker.store->Set("said", "").IgnoreError();
  });
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  if (status.ok()) status = Call(**backend, worker, Spec{OpKind::kBarrier}, 0);
  if (std::stoi(words[2]) == worker.rank) {
    status.Update(worker.store->Wait({"said"}, absl::Seconds(30)));
  }
  if (status.ok()) {
    status = Call(**backend, worker, Rooted(KindOfName(words[0]), std::stoi(words[1])), 1);
  }
  SetLogSink(nullptr);
  Print(status);
}

// Rank 0 waits for rank 6, which passes on to it what it gets of rank 2, for leaders that wait for
// others of their hosts, or for those of whom it hears through others.
TEST(AutoAheadStallTest, ARankThatWaitsBehindAnotherSaysWhoIsMissing) {
  for (const char* stalled : {"broadcast 2 2", "scatter 2 2", "reduce 0 3", "gather 0 3",
                              "all_reduce 0 5", "all_gather 0 4", "barrier 0 7"}) {
    SCOPED_TRACE(stalled);
    Workers workers(kFourHosts, "stalled", stalled);
    const std::vector<std::string> words = absl::StrSplit(stalled, ' ');
    for (int rank = 0; rank < workers.size(); ++rank) {
      const std::string printed = workers.Output(rank);
      EXPECT_THAT(printed, testing::EndsWith("OK\n")) << "rank " << rank;
      // Where ranks meet, all may have come a moment before one is warned again.
      if (!HasRoot(KindOfName(words[0]))) continue;
      EXPECT_THAT(printed, testing::Not(HasSubstr("all ranks have come"))) << "rank " << rank;
    }
  }
}

// ---- A rank that is late, and another call.

// Longer than leaders that have found another call wait for those that have not come.
constexpr absl::Duration kLate = absl::Seconds(6);

// All have made three calls, and make a fourth: some of them another one, and one comes late.
// argument: operation, the ranks that make another call, the late one, and seconds for a call.
void RunOddAndLate(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const OpKind kind = KindOfName(words[0]);
  Spec spec = Rooted(kind, 0);
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  uint64_t sequence = 0;
  for (; sequence < 3 && status.ok(); ++sequence) status = Call(**backend, worker, spec, sequence);
  if (status.ok()) status = Call(**backend, worker, Spec{OpKind::kBarrier}, sequence++);
  const std::vector<std::string> odd = absl::StrSplit(words[1], ',');
  if (std::find(odd.begin(), odd.end(), absl::StrCat(worker.rank)) != odd.end()) {
    spec.count = 6;
    if (kind == OpKind::kBarrier) spec.kind = OpKind::kAllReduce;
  }
  if (std::stoi(words[2]) == worker.rank) absl::SleepFor(kLate);
  // A rank that only gives may hear of the others in the barrier.
  for (const Spec& made : {spec, Spec{OpKind::kBarrier}}) {
    if (!status.ok()) break;
    status = RunAndWait(**backend, Build(made, worker.rank, worker.size),
                        {sequence++, Deadline(absl::Seconds(std::stoi(words[3])))})
                 .status();
  }
  Print(status);
}

struct OddAndLate {
  std::string odd;  // The ranks that make another call.
  int late;
  int seconds;  // For a call.
};

class AutoAheadOddAndLateTest : public testing::TestWithParam<const char*> {
 protected:
  // A host whose ranks make another call, or one whose ranks differ among themselves; and a rank
  // that is no leader, or one that is, which comes in time or too late.
  static std::vector<OddAndLate> Faults() {
    std::vector<OddAndLate> faults;
    for (const char* odd : {"6,7", "7"}) {
      for (const int late : {1, 4}) {
        for (const int seconds : {60, 3}) faults.push_back({odd, late, seconds});
      }
    }
    return faults;
  }

  // An error that quotes the call of an odd rank, and the others'.
  static testing::Matcher<std::string> QuotesBoth(const OddAndLate& fault) {
    const std::string call = GetParam();
    const OpKind kind = KindOfName(call);
    const bool is_barrier = kind == OpKind::kBarrier;
    const std::string usual = absl::StrCat(" called ", call, " #4", is_barrier ? "" : " (float32");
    const std::string odd = is_barrier ? " called all_reduce #4 (float32" : usual;
    // What need not be of one size a rank may not see of its neighbour, and either may be quoted.
    const bool sees_all =
        fault.odd == "6,7" || (kind != OpKind::kAllGather && kind != OpKind::kReduceScatter);
    const testing::Matcher<std::string> six = HasSubstr("6 elements"),
                                        five = HasSubstr("5 elements"), both = AllOf(six, five),
                                        one = AnyOf(six, five);
    return AllOf(StartsWith("FAILED_PRECONDITION"), HasSubstr(usual),
                 is_barrier ? six
                 : sees_all ? both
                            : one,
                 fault.odd == "7" ? testing::Matcher<std::string>(HasSubstr("rank 7" + odd))
                                  : AnyOf(HasSubstr("rank 6" + odd), HasSubstr("rank 7" + odd)));
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, AutoAheadOddAndLateTest,
                         testing::Values("broadcast", "reduce", "gather", "scatter", "all_reduce",
                                         "all_gather", "reduce_scatter", "barrier"),
                         [](const auto& info) { return std::string(info.param); });

// Ranks that wait for the late one until their time is up need not have heard of the other call.
TEST_P(AutoAheadOddAndLateTest, EveryRankQuotesTheTwoCallsOrNamesTheRankThatComesTooLate) {
  // The groups wait together, which takes no processor.
  std::vector<std::unique_ptr<Workers>> groups;
  for (const OddAndLate& fault : Faults()) {
    groups.push_back(std::make_unique<Workers>(
        kFourHosts, "odd and late",
        absl::StrCat(GetParam(), " ", fault.odd, " ", fault.late, " ", fault.seconds)));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const OddAndLate fault = Faults()[i];
    const auto quotes = QuotesBoth(fault);
    const auto names =
        AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(groups[i]->Describe(fault.late)));
    for (int rank = 0; rank < groups[i]->size(); ++rank) {
      const std::string printed = groups[i]->Output(rank);
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", ", fault.odd, " called another operation, ",
                                fault.late, " was late, ", fault.seconds, " s"));
      if (fault.seconds == 60) {
        EXPECT_THAT(printed, quotes);
      } else {
        EXPECT_THAT(printed, AnyOf(quotes, names));
      }
    }
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  return syncline::RunTestsOnHosts(argc, argv,
                                   {{"leave", &syncline::GiveAndLeave},
                                    {"small buffers", &syncline::GiveToSmallBuffers},
                                    {"many", &syncline::RunMany},
                                    {"odd", &syncline::RunOdd},
                                    {"odd and late", &syncline::RunOddAndLate},
                                    {"stalled", &syncline::RunStalled},
                                    {"without", &syncline::RunWithoutOne}});
}
