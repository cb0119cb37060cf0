// One group after another that makes rooted operations in a row, in which ranks that give do not
// wait for those that take; and in each, one or two faults at any moment: a rank is killed, stopped
// for a while or for good, makes another call, leaves, gives the group up or comes too late. What
// succeeds is right, element by element; every rank gets an error that names a rank at fault, in
// time; nothing is left. The program is its own worker. Arguments: --rounds=N and --seed=N.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "syncline/store.h"
#include "tests/support/arguments.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(60);  // For what must happen.
constexpr absl::Duration kTimeout = absl::Seconds(2);       // Of the calls.
constexpr absl::Duration kLate = absl::Seconds(5);          // A rank that comes too late sleeps.
constexpr int kMostTurns = 300;                             // Before a rank's own fault.
constexpr char kWrong[] = "WRONG";

int rounds = 40;
uint32_t seed = 1;

// Those from kKill on are done to a rank, by a signal; the others it does itself.
enum class FaultKind {
  kOtherCount,
  kOtherType,
  kOtherRoot,
  kOtherOperation,
  kLeave,
  kAbort,
  kSleep,
  kKill,
  kStop,
  kStopForGood,
  kCount,
};

struct Fault {
  FaultKind kind;
  int rank;
  int turn;              // Of one that a rank does itself.
  absl::Duration after;  // Of a signal.
};

// What happens in a group: the same in all its processes.
struct Plan {
  explicit Plan(uint32_t seed) : random(seed) {
    size = 2 + Draw(3);
    for (int n = Draw(3) == 0 ? 2 : 1; n > 0; --n) {
      const auto kind = static_cast<FaultKind>(Draw(static_cast<int>(FaultKind::kCount)));
      faults.push_back({kind, Draw(size), Draw(kMostTurns), absl::Microseconds(Draw(30'000))});
    }
  }

  // A whole number from 0 to `end` - 1.
  int Draw(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random); }

  std::string ToString() const {
    std::string text = absl::StrCat(size, " ranks");
    for (const Fault& fault : faults) {
      absl::StrAppend(&text, "; fault ", static_cast<int>(fault.kind), " of rank ", fault.rank,
                      ", turn ", fault.turn, " or after ", absl::FormatDuration(fault.after));
    }
    return text;
  }

  std::mt19937 random;
  int size;
  std::vector<Fault> faults;
};

// ---- A worker ----

// What rank `from` has for rank `to` in a turn: exact in float32, and another number in each turn.
float ValueOf(uint64_t turn, int from, int to) {
  return static_cast<float>(turn % 10'000 * 64 + static_cast<uint64_t>(from) * 8 +
                            static_cast<uint64_t>(to));
}

// A call of one rank, with its tensors.
class Call {
 public:
  Call(OpKind kind, int64_t count, int root, DType dtype, uint64_t turn, int rank, int size)
      : kind_(kind), root_(root), turn_(turn), rank_(rank), size_(size), own_(Make(count, dtype)) {
    Fill(own_, ValueOf(turn, rank, rank));
    if (kind == OpKind::kScatter) Fill(own_, -1);
    const bool has_list = (kind == OpKind::kGather || kind == OpKind::kScatter) && rank == root;
    for (int r = 0; has_list && r < size; ++r) {
      list_.push_back(Make(count, dtype));
      Fill(list_.back(), kind == OpKind::kScatter ? ValueOf(turn, rank, r) : -1);
    }
  }

  Collective ToCollective() const {
    switch (kind_) {
      case OpKind::kBroadcast:
        return Collective::Broadcast(own_, root_);
      case OpKind::kReduce:
        return Collective::Reduce(own_, ReduceOp::kSum, root_);
      case OpKind::kGather:
        return Collective::Gather(list_, own_, root_);
      case OpKind::kScatter:
        return Collective::Scatter(own_, list_, root_);
      case OpKind::kAllReduce:
        return Collective::AllReduce(own_, ReduceOp::kSum);
      default:
        return Collective::Barrier();
    }
  }

  // Of a call that has succeeded.
  absl::Status Check() const {
    float sum = 0;
    for (int r = 0; r < size_; ++r) sum += ValueOf(turn_, r, r);
    const bool has_sum =
        kind_ == OpKind::kAllReduce || (kind_ == OpKind::kReduce && rank_ == root_);
    float expected = has_sum ? sum : ValueOf(turn_, rank_, rank_);
    if (kind_ == OpKind::kBroadcast) expected = ValueOf(turn_, root_, root_);
    if (kind_ == OpKind::kScatter) expected = ValueOf(turn_, root_, rank_);
    SYNCLINE_RETURN_IF_ERROR(CheckAll(own_, expected));
    for (size_t r = 0; kind_ == OpKind::kGather && r < list_.size(); ++r) {
      const int from = static_cast<int>(r);
      SYNCLINE_RETURN_IF_ERROR(CheckAll(list_[r], ValueOf(turn_, from, from)));
    }
    return absl::OkStatus();
  }

 private:
  static Tensor Make(int64_t count, DType dtype) { return Tensor::Zeros(dtype, {count}); }
  static void Fill(const Tensor& tensor, float value) {
    if (tensor.dtype() != DType::kFloat32) return;  // Of a call that must not succeed.
    std::fill_n(tensor.data_as<float>(), tensor.numel(), value);
  }
  absl::Status CheckAll(const Tensor& tensor, float expected) const {
    const float* const begin = tensor.data_as<float>();
    const float* const end = begin + tensor.numel();
    const float* const wrong = std::find_if(begin, end, [&](float v) { return v != expected; });
    if (wrong == end) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(kWrong, ": ", Name(kind_), " #", turn_, " on rank ",
                                            rank_, ": element ", wrong - begin, " is ", *wrong,
                                            ", not ", expected));
  }

  const OpKind kind_;
  const int root_;
  const uint64_t turn_;
  const int rank_, size_;
  const Tensor own_;
  std::vector<Tensor> list_;
};

// Rank 0 sends to rank 1, which others do not hear of.
absl::Status SendToNext(uint64_t turn, int64_t count, int rank, Backend& backend,
                        const CallContext& context) {
  if (rank > 1) return absl::OkStatus();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {count});
  const float value = ValueOf(turn, 0, 1);
  if (rank == 0) {
    std::fill_n(tensor.data_as<float>(), count, value);
    return backend.RunAndWait(Collective::Send(tensor, 1), context).status();
  }
  SYNCLINE_RETURN_IF_ERROR(backend.RunAndWait(Collective::Recv(tensor, 0), context).status());
  const float* const data = tensor.data_as<float>();
  if (std::all_of(data, data + count, [&](float v) { return v == value; })) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(kWrong, ": message #", turn));
}

// Makes the calls that all ranks of the plan draw, until one fails, or this rank leaves: then OK.
absl::Status CallUntilFailure(Backend& backend, int rank, Plan& plan, Store& store) {
  constexpr int64_t kCounts[] = {1, 5, 16, 300, 2'000, 15'000, 40'000, 200'000};
  constexpr OpKind kKinds[] = {OpKind::kBroadcast, OpKind::kReduce,    OpKind::kGather,
                               OpKind::kScatter,   OpKind::kAllReduce, OpKind::kBarrier};
  constexpr int kRooted = 4, kOthers = 3;  // The last of which is a message.
  for (uint64_t turn = 0;; ++turn) {
    // Mostly short ones.
    int64_t count = kCounts[plan.Draw(plan.Draw(10) == 0 ? std::size(kCounts) : 5)];
    int root = plan.Draw(plan.size);
    const int drawn = plan.Draw(10) == 0 ? kRooted + plan.Draw(kOthers) : plan.Draw(kRooted);
    const bool is_message = drawn == kRooted + kOthers - 1;
    OpKind kind = is_message ? OpKind::kBarrier : kKinds[drawn];
    DType dtype = DType::kFloat32;
    bool is_as_drawn = true;
    for (const Fault& fault : plan.faults) {
      // A message is of two ranks alone, and a barrier has nothing that could differ.
      const bool has_arguments = !is_message && kind != OpKind::kBarrier;
      const bool is_due = static_cast<uint64_t>(fault.turn) <= turn && fault.rank == rank;
      if (!is_due || !is_as_drawn) continue;
      switch (fault.kind) {
        case FaultKind::kOtherCount:
          if (has_arguments) count += 1, is_as_drawn = false;
          break;
        case FaultKind::kOtherType:
          if (has_arguments) dtype = DType::kInt64, is_as_drawn = false;
          break;
        case FaultKind::kOtherRoot:
          if (has_arguments && HasRoot(kind)) root = (root + 1) % plan.size, is_as_drawn = false;
          break;
        case FaultKind::kOtherOperation:
          if (has_arguments) {
            kind = kind == OpKind::kReduce ? OpKind::kBroadcast : OpKind::kReduce;
            is_as_drawn = false;
          }
          break;
        case FaultKind::kLeave:
          return absl::OkStatus();
        case FaultKind::kAbort:
          backend.Abort(WithRanks(BackendError("this rank has given up"), {rank}));
          break;
        case FaultKind::kSleep:
          absl::SleepFor(kLate);
          break;
        default:
          break;
      }
    }
    CallContext context;
    context.sequence = turn;
    context.deadline = Deadline(turn == 0 ? kTestTimeout : kTimeout);
    if (is_message) {
      SYNCLINE_RETURN_IF_ERROR(SendToNext(turn, count, rank, backend, context));
    } else {
      const Call call(kind, count, root, dtype, turn, rank, plan.size);
      SYNCLINE_RETURN_IF_ERROR(backend.RunAndWait(call.ToCollective(), context).status());
      // Of a call that differs from those of the others nobody knows what comes out; but who takes
      // data compares first.
      if (is_as_drawn) SYNCLINE_RETURN_IF_ERROR(call.Check());
    }
    if (turn == 0) SYNCLINE_RETURN_IF_ERROR(store.Set(absl::StrCat("under way/", rank), ""));
  }
}

// Prints the ranks that the error names, and the error. Arguments: --worker store rank seed.
int Work(char** argv) {
  int rank;
  uint32_t worker_seed;
  if (!absl::SimpleAtoi(argv[3], &rank) || !absl::SimpleAtoi(argv[4], &worker_seed)) return 1;
  Plan plan(worker_seed);
  const std::shared_ptr<Store> store = FileStore::Open(argv[2]).value();
  BackendConfig config = OnLoopback(store, rank, plan.size, kTestTimeout);
  absl::Status status;
  int64_t left = 0;
  {
    const int64_t before = CountPossessions();
    auto backend = BackendRegistry::Make("shm", config);
    status = backend.ok() ? CallUntilFailure(**backend, rank, plan, *store) : backend.status();
    if (backend.ok()) backend->reset();
    left = CountPossessions(before) - before;
  }
  std::printf("%lld;%s;%s\n", static_cast<long long>(left),
              absl::StrJoin(RanksOf(status), ",").c_str(), status.ToString().c_str());
  return 0;
}

// ---- The test ----

struct Outcome {
  int64_t left = -1;    // Files and threads that it had once its backend was destroyed.
  std::set<int> named;  // Ranks, by the error.
  std::string error;    // "OK" if there was none.
};

Outcome OutcomeOf(const std::string& output) {
  const std::vector<std::string> parts = absl::StrSplit(output, absl::MaxSplits(';', 2));
  Outcome outcome;
  outcome.error = output;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[0], &outcome.left)) return outcome;
  for (absl::string_view word : absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
    int rank;
    if (absl::SimpleAtoi(word, &rank)) outcome.named.insert(rank);
  }
  outcome.error = parts[2];
  return outcome;
}

void RunRound(const std::string& path, uint32_t round_seed) {
  const Plan plan(round_seed);
  SCOPED_TRACE(plan.ToString());
  std::vector<std::unique_ptr<Process>> workers;
  std::vector<std::string> under_way;
  for (int rank = 0; rank < plan.size; ++rank) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{"--worker", path, absl::StrCat(rank), absl::StrCat(round_seed)}));
    under_way.push_back(absl::StrCat("under way/", rank));
  }
  // One that fails at once is never under way.
  FileStore::Open(path).value()->Wait(under_way, absl::Seconds(2)).IgnoreError();
  const auto signal = [&](int rank, int number) { kill(workers[rank]->pid(), number); };
  std::set<int> killed, stopped, faulty;
  for (const Fault& fault : plan.faults) {
    faulty.insert(fault.rank);
    if (fault.kind < FaultKind::kKill) continue;
    absl::SleepFor(fault.after);
    if (fault.kind == FaultKind::kKill) {
      signal(fault.rank, SIGKILL);
      killed.insert(fault.rank);
    } else {
      signal(fault.rank, SIGSTOP);
      if (fault.kind == FaultKind::kStopForGood) stopped.insert(fault.rank);
      if (fault.kind == FaultKind::kStop) {
        absl::SleepFor(absl::Milliseconds(20));
        // Unless the other fault has stopped it for good.
        if (stopped.count(fault.rank) == 0) signal(fault.rank, SIGCONT);
      }
    }
  }
  // Of ranks that are all stopped nobody is left to notice it.
  const bool all_are_stopped = static_cast<int>(stopped.size()) == plan.size;
  if (all_are_stopped) {
    for (int rank : stopped) signal(rank, SIGCONT);
    stopped.clear();
  }
  // A rank that was stopped for a while is no fault that anybody must notice. Then the test ends
  // the group itself.
  const bool is_harmless =
      all_are_stopped || std::all_of(plan.faults.begin(), plan.faults.end(),
                                     [](const Fault& it) { return it.kind == FaultKind::kStop; });
  if (is_harmless) {
    faulty = {0};
    killed = {0};
    signal(0, SIGKILL);
  }
  const auto check = [&](int rank) {
    const Outcome outcome = OutcomeOf(workers[rank]->Output(kTestTimeout));
    SCOPED_TRACE(absl::StrCat("rank ", rank, ": ", outcome.error));
    EXPECT_THAT(outcome.error, testing::Not(testing::HasSubstr(kWrong)));
    EXPECT_EQ(outcome.left, 0);
    const bool may_leave = std::any_of(
        plan.faults.begin(), plan.faults.end(),
        [&](const Fault& it) { return it.kind == FaultKind::kLeave && it.rank == rank; });
    if (may_leave && absl::StartsWith(outcome.error, "OK")) return;
    const bool names_a_faulty_one = std::any_of(
        faulty.begin(), faulty.end(), [&](int each) { return outcome.named.count(each) != 0; });
    EXPECT_TRUE(names_a_faulty_one);
  };
  for (int rank = 0; rank < plan.size; ++rank) {
    if (killed.count(rank) == 0 && stopped.count(rank) == 0) check(rank);
  }
  for (int rank : stopped) signal(rank, SIGCONT);
  for (int rank : stopped) {
    if (killed.count(rank) == 0) check(rank);
  }
}

TEST(ShmFaultStormTest, EveryFaultAmidRootedOperationsIsNamedAndNoResultIsWrong) {
  const ScratchFolder folder;
  std::printf("--rounds=%d --seed=%u\n", rounds, seed);
  std::mt19937 random(seed);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const std::string path = absl::StrCat(folder.path(), "/", round);
    RunRound(path, static_cast<uint32_t>(random()));
    std::filesystem::remove(path);  // If a victim did not let the store do so.
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleMock(&argc, argv);
  syncline::ReadArguments(argc, argv, {{"rounds", &syncline::rounds}, {"seed", &syncline::seed}});
  return RUN_ALL_TESTS();
}
