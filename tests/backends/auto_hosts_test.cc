// Backend auto over several hosts, with ranks as processes.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/common/tls_join.h"
#include "core/testing/tls_environment.h"
#include "core/tls/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/deadline.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "tests/backends/auto_workers.h"
#include "tests/backends/conformance_data.h"
#include "tests/backends/killable.h"
#include "tests/support/operations.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The host of each rank.
struct Layout {
  const char* name;
  std::vector<int> hosts;
};

std::vector<Layout> Layouts() {
  return {{"two_by_two", {0, 0, 1, 1}},         {"two_by_two_interleaved", {0, 1, 0, 1}},
          {"two_by_three", {0, 0, 0, 1, 1, 1}}, {"three_by_one_and_two", {0, 1, 2, 3, 3}},
          {"one_and_two", {0, 1, 1}},           {"three_and_two", {0, 0, 1, 1, 0}},
          {"three_by_one", {0, 1, 2}}};
}

// ---- Data.

// Sizes at which data take other ways than in the cases for all backends: parts of odd sizes, and
// of very different ones.
std::vector<Spec> LargeSpecs(int size) {
  std::vector<Spec> specs;
  for (OpKind kind : CollectiveKinds()) {
    if (kind == OpKind::kBarrier) continue;
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      if (op == ReduceOp::kAvg && !Reduces(kind)) continue;
      for (DType dtype : {DType::kInt8, DType::kBFloat16}) {
        for (int64_t count : {70001, 600011}) {
          for (BufferUse buffers : {BufferUse::kApart, BufferUse::kInPlace}) {
            if (buffers == BufferUse::kInPlace && !AllowsInPlace(kind)) continue;
            specs.push_back(
                {kind, dtype, count, op, static_cast<int>(specs.size()) % size, buffers});
            if (!HasRoot(kind)) specs.back().root = 0;
            if (!HasSplits(kind)) continue;
            specs.push_back(specs.back());
            specs.back().uneven = {0, count, 1, 3 * count / 2};
          }
        }
      }
    }
  }
  return specs;
}

absl::Status RunLarge(Member& member) {
  for (const Spec& spec : LargeSpecs(member.size())) {
    const Collective operation = Build(spec, member.rank(), member.size());
    SYNCLINE_RETURN_IF_ERROR(member.Run(operation));
    if (spec.kind == OpKind::kBroadcast || spec.kind == OpKind::kAllReduce) {
      member.AddToDigest(*operation.tensor);
    }
    SYNCLINE_RETURN_IF_ERROR(CheckDone(spec, operation, member.rank(), member.size()));
  }
  return absl::OkStatus();
}

// Prints how each case ended.
void RunData(const Worker& worker) {
  BackendRegistry::Entry here = {Capabilities::All(), [&](const BackendConfig& config) {
                                   BackendConfig mine = config;
                                   mine.local_address = worker.address;
                                   return BackendRegistry::Make("auto", mine);
                                 }};
  if (!BackendRegistry::Add("auto_here", here).ok()) return;
  std::vector<DataCase> cases = DataCases();
  cases.push_back({"large", {}, &RunLarge});
  for (const DataCase& data_case : cases) {
    for (MismatchCheck check : {MismatchCheck::kOn, MismatchCheck::kOff}) {
      if (check == MismatchCheck::kOff && data_case.name != "large") continue;
      auto own = std::make_shared<PrefixStore>(
          absl::StrCat(data_case.name, static_cast<int>(check)), worker.store);
      auto member = Member::Join("auto_here", own, worker.rank, worker.size, check);
      const absl::Status status = member.ok() ? data_case.run(**member) : member.status();
      std::printf("%s: %s\n", data_case.name.c_str(),
                  status.ok() ? absl::StrCat("OK ", (*member)->digest()).c_str()
                              : status.ToString().c_str());
      std::fflush(stdout);
    }
  }
}

class AutoDataTest : public testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, AutoDataTest, testing::ValuesIn(Layouts()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AutoDataTest, DataIsRightAndBitwiseEqualWhereItMustBe) {
  Workers workers(GetParam().hosts, "data", "");
  std::vector<std::string> first;
  for (int rank = 0; rank < workers.size(); ++rank) {
    const std::vector<std::string> lines =
        absl::StrSplit(workers.Output(rank), '\n', absl::SkipEmpty());
    if (rank == 0) first = lines;
    ASSERT_EQ(lines.size(), DataCases().size() + 2) << "rank " << rank << ": " << lines.back();
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_TRUE(absl::StrContains(lines[i], ": OK ")) << "rank " << rank << ": " << lines[i];
      EXPECT_EQ(lines[i], first[i]) << "results of rank " << rank << " differ from rank 0's";
    }
  }
}

// ---- Failures.

constexpr int kTurns = 3;  // That all ranks make, before the last rank does something else.
constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string KeyOf(int rank) { return absl::StrCat("under way/", rank); }

// Of all ranks, once each has made its turns.
std::vector<std::string> KeysOf(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(KeyOf(rank));
  return keys;
}

// Makes one call again and again until it fails. argument: call elements what-the-last-rank-does
// seconds-for-a-call.
absl::Status CallUntilItFails(const Worker& worker, std::shared_ptr<Backend>& backend) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  Spec spec{OpKind::kBarrier};
  for (OpKind kind : CollectiveKinds()) {
    if (Name(kind) == words[0]) spec.kind = kind;
  }
  const bool is_last = worker.rank == worker.size - 1;
  const std::string what = is_last ? words[2] : "";
  spec.count = std::stoll(words[1]);
  const absl::Duration timeout = absl::Seconds(std::stoll(words[3]));
  Collective operation = Build(spec, worker.rank, worker.size);
  std::thread aborter;
  for (uint64_t turn = 0;; ++turn) {
    // Some may still be in the call before, whose ranks need not all wait for each other.
    const bool is_awaited = what == "differ" || what == "shorten" || what == "barrier" ||
                            what == "leave" || what == "exit";
    if (turn == kTurns && is_awaited) {
      worker.store->Wait(KeysOf(worker.size), absl::Seconds(60)).IgnoreError();
    }
    if (turn == kTurns && what == "differ") {
      spec.count = 12345;
      operation = Build(spec, worker.rank, worker.size);
    }
    if (turn == kTurns && (what == "shorten" || what == "barrier")) {
      if (what == "barrier") spec.kind = OpKind::kBarrier;
      spec.count = 5;
      operation = Build(spec, worker.rank, worker.size);
    }
    if (turn == kTurns && what == "abort") {
      aborter = std::thread([&] {
        worker.store->Wait(KeysOf(worker.size), absl::Seconds(60)).IgnoreError();
        backend->Abort(BackendError("the disk is full"));
      });
    }
    if (turn == kTurns && (what == "leave" || what == "exit")) backend = nullptr;
    if (turn == kTurns && what == "exit") return absl::OkStatus();
    if (turn == kTurns && (what == "leave" || what == "stay_away")) pause();
    CallContext context{turn, Deadline(turn < kTurns ? absl::Seconds(60) : timeout)};
    const absl::Status status = RunAndWait(*backend, operation, context).status();
    if (!status.ok() && aborter.joinable()) aborter.join();
    SYNCLINE_RETURN_IF_ERROR(status);
    if (turn + 1 == kTurns) worker.store->Set(KeyOf(worker.rank), "").IgnoreError();
  }
}

// Prints when the call had failed, and why.
void RunToFailure(const Worker& worker) {
  auto backend = worker.Join("auto", "group");
  const absl::Status status = backend.ok() ? CallUntilItFails(worker, *backend) : backend.status();
  std::printf("%lld %s\n", static_cast<long long>(NowNanos()), status.ToString().c_str());
}

struct Failed {
  int64_t nanos = 0;
  std::string error;
};

class FailingGroup {
 public:
  FailingGroup(const Layout& layout, const std::string& call, int64_t count,
               const std::string& what, absl::Duration timeout = kTimeout)
      : workers(layout.hosts, "fail",
                absl::StrCat(call, " ", count, " ", what, " ", absl::ToInt64Seconds(timeout))),
        last(workers.size() - 1) {
    EXPECT_TRUE(workers.store().Wait(KeysOf(workers.size()), absl::Seconds(60)).ok());
  }

  Failed Await(int rank) {
    const std::string output = workers.Output(rank);
    const std::vector<std::string> parts = absl::StrSplit(output, absl::MaxSplits(' ', 1));
    Failed failed;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &failed.nanos)) return {0, output};
    failed.error = parts[1];
    return failed;
  }

  Workers workers;
  const int last;
};

// The last rank shares its host, or is alone on it.
std::vector<std::vector<int>> FailingHosts() {
  return {{0, 0, 1, 1}, {1, 0, 0}, {0, 0, 1}, {0, 1}};
}

// The operations that use shared memory and rails.
const char* const kFailingCalls[] = {"all_reduce", "broadcast", "reduce", "all_gather",
                                     "reduce_scatter"};

constexpr int64_t kLarge = 4 << 20;  // Elements: 16 MiB.

class AutoFailureTest : public testing::TestWithParam<std::tuple<std::vector<int>, const char*>> {
 protected:
  static Layout layout() { return {"", std::get<0>(GetParam())}; }
  static std::string call() { return std::get<1>(GetParam()); }
  // How an error quotes the call with so many elements.
  static std::string Quoted(int64_t count) {
    if (call() == "all_to_all") return absl::StrCat("(float32, sends [", count, ", ");
    return absl::StrCat("(float32, ", count, " elements");
  }
};

std::string NameOfFailure(const testing::TestParamInfo<AutoFailureTest::ParamType>& info) {
  return absl::StrCat("hosts_", absl::StrJoin(std::get<0>(info.param), ""), "_",
                      std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Calls, AutoFailureTest,
                         testing::Combine(testing::ValuesIn(FailingHosts()),
                                          testing::ValuesIn(kFailingCalls)),
                         NameOfFailure);

// Where a node has several ranks, shared memory serves these within it, and tcp between the nodes.
INSTANTIATE_TEST_SUITE_P(PairwiseCalls, AutoFailureTest,
                         testing::Combine(testing::Values(std::vector<int>{0, 0, 1, 1},
                                                          std::vector<int>{1, 0, 0}),
                                          testing::Values("gather", "scatter", "all_to_all")),
                         NameOfFailure);

TEST_P(AutoFailureTest, EverySurvivorOfAKillNamesTheVictimSoon) {
  FailingGroup group(layout(), call(), kLarge, "die");
  const int64_t killed = NowNanos();
  group.workers.Signal(group.last, SIGKILL);
  absl::Duration slowest;
  for (int rank = 0; rank < group.last; ++rank) {
    const Failed failed = group.Await(rank);
    EXPECT_THAT(failed.error, HasSubstr(group.workers.Describe(group.last))) << "rank " << rank;
    slowest = std::max(slowest, absl::Nanoseconds(failed.nanos - killed));
  }
  std::printf("noticed after %s\n", absl::FormatDuration(slowest).c_str());
  EXPECT_LT(slowest, kNotice);
}

TEST_P(AutoFailureTest, ARankThatLeavesFailsAllOthersSoonWithItsName) {
  FailingGroup group(layout(), call(), kLarge, "leave");
  for (int rank = 0; rank < group.last; ++rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr(absl::StrCat(group.workers.Describe(group.last),
                                             " has left the group: the backend was destroyed"))))
        << "rank " << rank;
  }
}

TEST_P(AutoFailureTest, ARankThatLeavesAndEndsAtOnceIsNotCalledDead) {
  FailingGroup group(layout(), call(), kLarge, "exit");
  for (int rank = 0; rank < group.last; ++rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr(absl::StrCat(group.workers.Describe(group.last),
                                             " has left the group: the backend was destroyed"))))
        << "rank " << rank;
  }
}

TEST_P(AutoFailureTest, ARankThatAbortsFailsAllRanksWithItsCause) {
  FailingGroup group(layout(), call(), kLarge, "abort");
  for (int rank = 0; rank <= group.last; ++rank) {
    const std::string error = group.Await(rank).error;
    EXPECT_THAT(error, AllOf(HasSubstr("ABORTED"), HasSubstr("the disk is full")))
        << "rank " << rank;
    if (rank != group.last) {
      EXPECT_THAT(error, HasSubstr(group.workers.Describe(group.last))) << "rank " << rank;
    }
  }
}

TEST_P(AutoFailureTest, DifferentCallsAreAMismatchOnEveryRank) {
  FailingGroup group(layout(), call(), 1 << 16, "differ");
  for (int rank = 0; rank <= group.last; ++rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr("FAILED_PRECONDITION"),
                      HasSubstr(absl::StrCat("rank ", group.last, " called ", call(), " #3")),
                      HasSubstr(Quoted(65536)), HasSubstr(Quoted(12345))))
        << "rank " << rank;
  }
}

// Calls of the same kind take another way where they are short.
TEST_P(AutoFailureTest, AShortCallAmongLongOnesIsAMismatchOnEveryRank) {
  FailingGroup group(layout(), call(), 1 << 16, "shorten");
  for (int rank = 0; rank <= group.last; ++rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr("FAILED_PRECONDITION"),
                      HasSubstr(absl::StrCat("rank ", group.last, " called ", call(), " #3")),
                      HasSubstr(Quoted(65536)), HasSubstr(Quoted(5))))
        << "rank " << rank;
  }
}

TEST_P(AutoFailureTest, ABarrierAmongOtherCallsIsAMismatchOnEveryRank) {
  FailingGroup group(layout(), call(), 1 << 16, "barrier");
  for (int rank = 0; rank <= group.last; ++rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr("FAILED_PRECONDITION"),
                      HasSubstr(absl::StrCat("rank ", group.last, " called barrier #3")),
                      HasSubstr(absl::StrCat("called ", call(), " #3"))))
        << "rank " << rank;
  }
}

// By call, on all hosts. The groups wait for their timeouts together, which takes no processor;
// each is made, and brought to wait, before the next.
class AutoAbsenceTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string call() { return GetParam(); }

  // Makes a group on each of the hosts, whose last rank does `what`, and calls `disturb`; then
  // calls `check` with each group and rank but the last.
  static void OnEachHosts(const std::string& what,
                          const std::function<void(FailingGroup&)>& disturb,
                          const std::function<void(FailingGroup&, int)>& check) {
    std::vector<std::unique_ptr<FailingGroup>> groups;
    for (const std::vector<int>& hosts : FailingHosts()) {
      groups.push_back(std::make_unique<FailingGroup>(Layout{"", hosts}, call(), kLarge, what,
                                                      absl::Seconds(2)));
      disturb(*groups.back());
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      for (int rank = 0; rank < groups[i]->last; ++rank) {
        SCOPED_TRACE(absl::StrCat("hosts ", absl::StrJoin(FailingHosts()[i], ""), ", rank ", rank));
        check(*groups[i], rank);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, AutoAbsenceTest, testing::ValuesIn(kFailingCalls),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AutoAbsenceTest, ARankThatIsStoppedIsATimeoutThatNamesItOnEveryRank) {
  const auto stop = [](FailingGroup& group) { group.workers.Signal(group.last, SIGSTOP); };
  OnEachHosts("stop", stop, [](FailingGroup& group, int rank) {
    EXPECT_THAT(group.Await(rank).error,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(absl::StrCat(call(), " #")),
                      HasSubstr(group.workers.Describe(group.last)), HasSubstr(" after 2s")));
  });
}

TEST_P(AutoAbsenceTest, ARankThatStaysAwayIsATimeoutThatNamesItOnEveryRank) {
  const auto nothing = [](FailingGroup&) {};
  OnEachHosts("stay_away", nothing, [](FailingGroup& group, int rank) {
    EXPECT_THAT(
        group.Await(rank).error,
        AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(absl::StrCat(call(), " #3")),
              HasSubstr(group.workers.Describe(group.last)), HasSubstr("not arrived after 2s")));
  });
}

// No connection ends when a cable is cut, and no process: only the silence tells. The last host may
// also hear nothing, and still be heard.
class CutGroup {
 public:
  enum class Cut { kBothWays, kToTheHost };

  CutGroup(const Layout& layout, const std::string& call, int64_t count, Cut cut = Cut::kBothWays)
      : layout_(layout), call_(call), group_(layout, call, count, "go_on", absl::Minutes(3)) {
    cut_ = NowNanos();
    const int host = layout.hosts.back();
    cut == Cut::kBothWays ? group_.workers.CutOff(host) : group_.workers.LoseTo(host);
  }

  void Check();

 private:
  const Layout layout_;
  const std::string call_;
  FailingGroup group_;
  int64_t cut_;
};

void CutGroup::Check() {
  const int away = layout_.hosts.back();
  bool is_told = false;
  for (int rank = 0; rank < group_.workers.size(); ++rank) {
    const Failed failed = group_.Await(rank);
    EXPECT_THAT(failed.error, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(call_)));
    // The hosts of two sides see each other go.
    bool is_named = false;
    for (int other = 0; other < group_.workers.size(); ++other) {
      const bool is_across = (layout_.hosts[other] == away) != (layout_.hosts[rank] == away);
      is_named |= is_across && absl::StrContains(failed.error, group_.workers.Describe(other));
    }
    EXPECT_TRUE(is_named) << "rank " << rank << ": " << failed.error;
    EXPECT_LT(absl::Nanoseconds(failed.nanos - cut_), absl::Minutes(1)) << failed.error;
    is_told |= absl::StrContains(failed.error, "not answered for 5s (SYNCLINE_TCP_KEEPALIVE)");
  }
  EXPECT_TRUE(is_told) << "no error says that a host has not answered";
}

TEST(AutoCableTest, AHostThatIsCutOffWhileItIsSentDataOrBetweenShortCallsIsNamed) {
  CutGroup data({"", {0, 0, 1, 1}}, "all_reduce", kLarge);
  CutGroup short_calls({"", {0, 1}}, "barrier", 1);
  data.Check();
  short_calls.Check();
}

TEST(AutoCableTest, AHostThatHearsNothingAndIsHeardIsNamedLongBeforeTheTimeout) {
  const auto cut = CutGroup::Cut::kToTheHost;
  CutGroup data({"", {0, 0, 1, 1}}, "all_reduce", kLarge, cut);
  CutGroup short_calls({"", {0, 0, 1, 1}}, "barrier", 1, cut);
  CutGroup from_root({"", {0, 1, 1}}, "broadcast", kLarge, cut);
  data.Check();
  short_calls.Check();
  from_root.Check();
}

// ---- Encryption of other backends.

absl::Status JoinPlain(const Worker& worker, const std::string& name) {
  PrefixStore store(name, worker.store);
  return backends::JoinPlain("mpi", store, worker.rank, worker.size, "",
                             Deadline(absl::Seconds(60)))
      .status();
}

void RunPlain(const Worker& worker) {
  setenv("SYNCLINE_TLS", "secret", 0);
  const absl::Status refused = JoinPlain(worker, "refused");
  setenv("SYNCLINE_TLS_PLAIN", "nccl,mpi", 1);
  const absl::Status allowed = JoinPlain(worker, "allowed");
  std::printf("%s; %s\n", refused.ToString().c_str(), allowed.ToString().c_str());
}

TEST(PlainBackendTest, AreRefusedBetweenHostsWhereAllIsToBeEncrypted) {
  Workers workers({0, 1}, "plain", "");
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_THAT(workers.Output(rank),
                AllOf(HasSubstr("backend mpi does not encrypt what it sends between hosts"),
                      HasSubstr("SYNCLINE_TLS_PLAIN=mpi allows it"), HasSubstr("; OK")));
  }
}

void RunGloo(const Worker& worker) {
  const auto join = [&](const std::string& name) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, worker.Join("gloo", name));
    return backend->RunAndWait(Collective::Barrier(), CallContext()).status();
  };
  const absl::Status encrypted = join("encrypted");
  if (worker.rank == 1) unsetenv("SYNCLINE_TLS");
  const absl::Status mixed = join("mixed");
  std::printf("%s; %s\n", encrypted.ToString().c_str(), mixed.ToString().c_str());
}

TEST(GlooEncryptionTest, ItEncryptsBetweenHostsAndAllRanksMust) {
  const TlsEnvironment environment;
  environment.Set(tls::Mode::kSecret);
  Workers workers({0, 1}, "gloo", "");
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_THAT(workers.Output(rank),
                AllOf(testing::StartsWith("OK; "),
                      HasSubstr("SYNCLINE_TLS must be the same on all ranks: it is secret for rank "
                                "0 (host "),
                      HasSubstr("and off for rank 1 (host ")));
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  setenv("SYNCLINE_TCP_KEEPALIVE", "5", 0);
  return RunTestsOnHosts(
      argc, argv,
      {{"data", &RunData}, {"fail", &RunToFailure}, {"gloo", &RunGloo}, {"plain", &RunPlain}});
}
