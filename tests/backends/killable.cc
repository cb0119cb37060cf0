#include "tests/backends/killable.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/gloo/periodic_wakeup.h"
#include "core/device/task_thread.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "tests/support/backend_config.h"
#include "tests/support/hosts.h"
#include "tests/support/operations.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

constexpr char kMode[] = "--killable";
constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string UnderWayKey(int rank) { return absl::StrCat("under way/", rank); }

std::shared_ptr<Store> OpenStore(const std::string& where) {
  int port;
  if (!absl::SimpleAtoi(where, &port)) return FileStore::Open(where).value();
  TCPStore::Options options;
  options.port = port;
  return TCPStore::Create(options).value();
}

absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& name, std::shared_ptr<Store> store,
                                              int rank, const std::string& address) {
  BackendConfig config = OnLoopback(std::move(store), rank, kKillableRanks, kTimeout);
  if (!address.empty()) config.local_address = address;
  return BackendRegistry::Make(name, config);
}

// What this rank does in the `turn`th call of `call`.
Collective MakeP2p(const std::string& call, int64_t count, int rank, int turn) {
  const bool sends = (call == "send") != (rank == kVictim);
  Collective operation(sends ? OpKind::kSend : OpKind::kRecv);
  operation.OwnTensor(Tensor::Zeros(DType::kFloat32, {count}));
  operation.peer = rank == kVictim ? turn % kVictim : kVictim;
  if (!sends && call == "recv_from_any") operation.peer = kAnySource;
  return operation;
}

bool IsP2pCall(const std::string& call) {
  return call == "send" || call == "recv" || call == "recv_from_any";
}

Collective Make(const std::string& call, int64_t count, int rank, int turn) {
  if (IsP2pCall(call)) return MakeP2p(call, count, rank, turn);
  Spec spec{OpKind::kBarrier};
  for (OpKind kind : CollectiveKinds()) {
    if (Name(kind) == call) spec.kind = kind;
  }
  spec.count = count;
  return Build(spec, rank, kKillableRanks);
}

// The call of a turn whose result is checked: what must come out differs from turn to turn.
Spec CheckedSpec(const std::string& call, int64_t count, int turn) {
  Spec spec{OpKind::kBarrier};
  for (OpKind kind : CollectiveKinds()) {
    if (Name(kind) == call) spec.kind = kind;
  }
  spec.count = count + turn % 3;
  if (HasRoot(spec.kind)) spec.root = turn % kKillableRanks;
  if (turn % 2 == 1) spec.op = ReduceOp::kMax;
  return spec;
}

// Of the message with that number between two ranks. From any rank: the numbers are not known.
Tensor CheckedMessage(const std::string& call, int64_t count, uint64_t number) {
  return Numbers(DType::kFloat32, count, call == "recv_from_any" ? 0 : number % 100);
}

// The number of the operation: of send and recv, the victim talks to the others in turns.
uint64_t Sequence(const std::string& call, int rank, int turn) {
  return IsP2pCall(call) && rank == kVictim ? turn / kVictim : turn;
}

absl::Status CheckResult(const Habit& habit, const Spec& spec, const Collective& done, int rank,
                         uint64_t number) {
  if (!IsP2pCall(habit.call)) return CheckDone(spec, done, rank, kKillableRanks);
  if (done.kind != OpKind::kRecv) return absl::OkStatus();
  if (SameBytes(*done.tensor, CheckedMessage(habit.call, habit.count, number))) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("message ", number, kWrong));
}

// What is wrong here, the test's own group says.
void WarmUp(const std::string& name, const std::shared_ptr<Store>& store, int rank,
            const std::string& address) {
  auto backend = Join(name, std::make_shared<PrefixStore>("warm up", store), rank, address);
  if (!backend.ok()) return;
  CallContext context;
  context.deadline = Deadline(kTimeout);
  RunAndWait(**backend, Make("all_reduce", 1, rank, 0), context).IgnoreError();
}

// Starts a thread and returns once the kernel no longer lists it. std::thread::join() returns a
// moment before: the thread's exit is reported to the thread that joins it before its entry in
// /proc goes.
void RunThreadToItsEnd() {
  std::string entry;
  std::thread([&] { entry = absl::StrCat("/proc/self/task/", gettid()); }).join();
  while (access(entry.c_str(), F_OK) == 0) absl::SleepFor(absl::Milliseconds(1));
}

// As CountPossessions, but of what stays: a thread that has ended is listed a moment longer.
int64_t CountWhatStays() {
  int64_t count = CountPossessions();
  for (int unchanged = 0; unchanged < 10;) {
    absl::SleepFor(absl::Milliseconds(2));
    const int64_t now = CountPossessions();
    unchanged = now < count ? 0 : unchanged + 1;
    count = std::min(count, now);
  }
  return count;
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Habit& habit) {
  return os << habit.call << " of " << habit.count;
}

std::vector<std::string> KillableCalls() {
  std::vector<std::string> calls;
  for (OpKind kind : CollectiveKinds()) calls.emplace_back(Name(kind));
  calls.insert(calls.end(), {"send", "recv", "recv_from_any"});
  return calls;
}

absl::Status CallUntilFailure(Backend& backend, int rank, const Habit& habit,
                              const std::function<void()>& on_first) {
  Habit now = habit;
  Collective operation(OpKind::kBarrier);
  for (int turn = 0;; ++turn) {
    // Everybody has talked to the victim, which does as the others until then.
    const int settling = IsP2pCall(habit.call) && rank == kVictim ? kVictim : 1;
    const bool settled = turn >= settling;
    // A rank may have sent or given its data before another has come; so the victim does not break
    // the group too early.
    if (habit.victims_count > 0 && turn == settling) {
      CallContext context;
      context.deadline = Deadline(kTimeout);
      SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, Collective::Barrier(), context).status());
    }
    if (settled && rank == kVictim) {
      if (habit.victims_call == "nothing") return absl::OkStatus();
      if (!habit.victims_call.empty()) {
        now.call = habit.victims_call;
        now.timeout = kTimeout;  // Others give up before.
      }
      if (habit.victims_count > 0) now.count = habit.victims_count;
    }
    const bool is_p2p = IsP2pCall(now.call);
    const Spec spec = CheckedSpec(now.call, now.count, turn);
    const uint64_t number = Sequence(now.call, rank, turn);
    if (habit.checks && !is_p2p) {
      operation = Build(spec, rank, kKillableRanks);
    } else if (turn < 4 || is_p2p) {
      operation = Make(now.call, now.count, rank, turn);
      if (habit.checks && operation.kind == OpKind::kSend) {
        operation.OwnTensor(CheckedMessage(now.call, now.count, number));
      }
    }
    CallContext context;
    context.sequence = number;
    context.deadline = Deadline(settled ? now.timeout : kTimeout);
    SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, operation, context).status());
    if (habit.checks) {
      SYNCLINE_RETURN_IF_ERROR(CheckResult(now, spec, operation, rank, number));
    }
    if (turn == 0) on_first();
  }
}

int64_t NowNanos() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

KillableGroup::KillableGroup(const std::string& backend, const std::string& store,
                             const Habit& habit, const std::vector<HostSeat>& hosts) {
  for (int rank = 0; rank < kKillableRanks; ++rank) {
    const HostSeat seat = hosts.empty() ? HostSeat() : hosts[rank % hosts.size()];
    workers_.push_back(std::make_unique<Process>(std::vector<std::string>{
        kMode, backend, store, absl::StrCat(rank), habit.call, absl::StrCat(habit.count),
        absl::StrCat(absl::ToInt64Milliseconds(habit.timeout)), habit.victims_call,
        absl::StrCat(habit.victims_count), habit.checks ? "checks" : "", seat.door, seat.address}));
  }
}

bool KillableGroup::AwaitUnderWay(Store& store) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < kKillableRanks; ++rank) keys.push_back(UnderWayKey(rank));
  return store.Wait(keys, kTimeout).ok();
}

void KillableGroup::Signal(int rank, int signal) const { kill(pid(rank), signal); }

std::string KillableGroup::Describe(int rank) const {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("rank ", rank, " (host ", host, ", pid ", pid(rank), ")");
}

KillableGroup::Outcome KillableGroup::Await(int rank, absl::Duration limit) {
  const std::string output = workers_[rank]->Output(limit);
  const std::vector<std::string> parts = absl::StrSplit(output, absl::MaxSplits(' ', 3));
  Outcome outcome;
  if (parts.size() < 4 || !absl::SimpleAtoi(parts[0], &outcome.nanos) ||
      !absl::SimpleAtoi(parts[1], &outcome.left)) {
    outcome = Outcome();
    outcome.error = output;
    return outcome;
  }
  for (absl::string_view word : absl::StrSplit(parts[2], ',', absl::SkipEmpty())) {
    int blamed;
    if (absl::SimpleAtoi(word, &blamed)) outcome.ranks.push_back(blamed);
  }
  outcome.error = parts[3];
  return outcome;
}

std::optional<int> WorkAsKillable(int argc, char** argv, bool warms_up) {
  if (argc != 13 || std::string(argv[1]) != kMode) return std::nullopt;
  const std::string door = argv[11];
  if (!door.empty()) EnterHost(door);
  int rank;
  int64_t milliseconds;
  Habit habit;
  habit.call = argv[5];
  habit.victims_call = argv[8];
  habit.checks = std::string(argv[10]) == "checks";
  if (!absl::SimpleAtoi(argv[4], &rank) || !absl::SimpleAtoi(argv[6], &habit.count) ||
      !absl::SimpleAtoi(argv[7], &milliseconds) ||
      !absl::SimpleAtoi(argv[9], &habit.victims_count)) {
    return 1;
  }
  habit.timeout = absl::Milliseconds(milliseconds);
  const std::shared_ptr<Store> store = OpenStore(argv[3]);
  RunThreadToItsEnd();  // With a process's first, ThreadSanitizer starts one of its own.
  {
    const auto nothing = [] {};
    // Starts the thread that all groups of the process share.
    const gloo_backend::PeriodicWakeup first(nothing);
  }
  // Likewise those for calls on devices. Where one does not start, the count shows it.
  device::TaskThread::Callbacks().Start().IgnoreError();
  device::TaskThread::Releases().Start().IgnoreError();
  if (warms_up) WarmUp(argv[2], store, rank, argv[12]);
  const int64_t before = CountWhatStays();
  auto backend = Join(argv[2], store, rank, argv[12]);
  // The test may take the store away before it has answered.
  auto on_first = [&] { store->Set(UnderWayKey(rank), "").IgnoreError(); };
  const absl::Status status =
      backend.ok() ? CallUntilFailure(**backend, rank, habit, on_first) : backend.status();
  if (status.ok()) pause();  // Does nothing until it is killed.
  const int64_t failed = NowNanos();
  if (backend.ok()) backend->reset();
  std::printf("%lld %lld %s %s\n", static_cast<long long>(failed),
              static_cast<long long>(CountPossessions(before) - before),
              absl::StrJoin(RanksOf(status), ",").c_str(), status.ToString().c_str());
  return 0;
}

}  // namespace syncline
