// The functions that libfake_nccl.so exports.
#include "backends/nccl/testing/fake_nccl/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/nccl/testing/fake_nccl/communicator.h"
#include "backends/nccl/testing/fake_nccl/driver.h"
#include "backends/nccl/testing/fake_nccl/elements.h"
#include "backends/nccl/testing/fake_nccl/more_functions.h"
#include "backends/nccl/testing/fake_nccl/operations.h"
#include "backends/nccl/testing/fake_nccl/segment.h"
#include "backends/nccl/testing/fake_nccl/settings.h"

namespace fake_nccl {
namespace {

using namespace syncline::nccl;  // NOLINT: NCCL's names, of which the whole file is made.

using CommunicatorPtr = std::shared_ptr<Communicator>;

// What the program holds. Handles are numbers that are never used again, so that one that was freed
// is an error and no crash.
struct Objects {
  std::mutex mutex;
  std::map<uintptr_t, CommunicatorPtr> communicators;
  std::map<uintptr_t, uintptr_t> registrations;  // To their communicators.
  std::map<uintptr_t, size_t> allocations;
  uintptr_t last = 0;
};

Objects& TheObjects() {
  static Objects* const objects = new Objects;
  return *objects;
}

uintptr_t NewHandle(Objects& objects) { return (++objects.last << 8) | 0xfe; }

// Writes the handle too before others can find it: whoever sees that there is one more may read it.
void AddCommunicator(CommunicatorPtr communicator, NcclComm* made) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const uintptr_t handle = NewHandle(objects);
  objects.communicators[handle] = std::move(communicator);
  *made = reinterpret_cast<NcclComm>(handle);
}

// Null if there is none.
CommunicatorPtr Find(NcclComm handle) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.communicators.find(reinterpret_cast<uintptr_t>(handle));
  return found == objects.communicators.end() ? nullptr : found->second;
}

// The same, and forgets it.
CommunicatorPtr Remove(NcclComm handle) {
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.communicators.find(reinterpret_cast<uintptr_t>(handle));
  if (found == objects.communicators.end()) return nullptr;
  CommunicatorPtr communicator = found->second;
  objects.communicators.erase(found);
  // As NCCL does, whose communicators let go of what they have registered.
  for (auto it = objects.registrations.begin(); it != objects.registrations.end();) {
    it = it->second == reinterpret_cast<uintptr_t>(handle) ? objects.registrations.erase(it)
                                                           : std::next(it);
  }
  return communicator;
}

// See fake_nccl_hold_aborts.
struct HeldAborts {
  std::mutex mutex;
  std::condition_variable changed;
  bool are_held = false;
};

HeldAborts& TheHeldAborts() {
  static HeldAborts* const held = new HeldAborts;
  return *held;
}

void AwaitAborts() {
  HeldAborts& held = TheHeldAborts();
  std::unique_lock<std::mutex> lock(held.mutex);
  held.changed.wait(lock, [&] { return !held.are_held; });
}

// See fake_nccl_hold_operations.
struct HeldOperations {
  std::mutex mutex;
  std::condition_variable changed;
  bool are_held = false;
  int waiting = 0;
};

HeldOperations& TheHeldOperations() {
  static HeldOperations* const held = new HeldOperations;
  return *held;
}

void AwaitOperations() {
  HeldOperations& held = TheHeldOperations();
  std::unique_lock<std::mutex> lock(held.mutex);
  ++held.waiting;
  held.changed.wait(lock, [&] { return !held.are_held; });
  --held.waiting;
}

NcclResult NoCommunicator() {
  return Fail(kNcclInvalidArgument, "this is no communicator, or one that was freed");
}

NcclResult UsedByAnother() {
  return Fail(kNcclInvalidUsage, "another thread is in a function of the same communicator");
}

// A call that works on a communicator, which may be null.
class Use {
 public:
  explicit Use(CommunicatorPtr communicator) : communicator_(std::move(communicator)) {
    if (communicator_ == nullptr) {
      result_ = NoCommunicator();
    } else if (!communicator_->Enter()) {
      result_ = UsedByAnother();
    }
  }
  ~Use() {
    if (result_ == kNcclSuccess) communicator_->Leave();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Why it fails, or kNcclSuccess.
  NcclResult result() const { return result_; }

 private:
  const CommunicatorPtr communicator_;
  NcclResult result_ = kNcclSuccess;
};

// Work on communicators that may take long: their making and their end.
struct Job {
  CommunicatorPtr runner;             // On its thread, unless it is blocking.
  std::vector<CommunicatorPtr> also;  // Whose state is in progress meanwhile too. Not null.
  bool sets_runner = true;            // Whether a failure is the runner's too.
  std::function<NcclResult()> body;
};

// What one thread has gathered between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  NcclResult error = kNcclSuccess;
  std::vector<Job> jobs;
  std::vector<std::pair<CommunicatorPtr, std::vector<Operation>>> operations;
};

// In the static block of thread-locals: ThreadSanitizer takes the reuse of a dynamic one, whose
// thread has ended, for a race.
thread_local Group group __attribute__((tls_model("initial-exec")));

bool IsError(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

NcclResult RunJob(const Job& job) {
  if (!job.runner->is_blocking()) {
    for (const CommunicatorPtr& other : job.also) other->SetState(kNcclInProgress);
    job.runner->RunInBackground([job] {
      const NcclResult result = job.body();
      for (const CommunicatorPtr& other : job.also) other->SetState(result);
      job.runner->SetState(result);
    });
    return kNcclInProgress;
  }
  const NcclResult result = job.body();
  for (const CommunicatorPtr& other : job.also) other->SetState(result);
  if (job.sets_runner) job.runner->SetState(result);
  return result;
}

// The first error, or else kNcclInProgress if there is one.
NcclResult Combine(NcclResult first, NcclResult second) {
  if (IsError(first)) return first;
  return second == kNcclSuccess ? first : second;
}

// At the end of a group, lets other threads use the communicators of its operations.
class Leaving {
 public:
  explicit Leaving(const Group& ended) : ended_(ended) {}
  ~Leaving() {
    for (const auto& entry : ended_.operations) entry.first->Leave();
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  const Group& ended_;
};

NcclResult EndGroup() {
  if (--group.depth > 0) return kNcclSuccess;
  const Group ended = std::exchange(group, Group());
  const Leaving leaving(ended);
  if (IsError(ended.error)) {
    for (const Job& job : ended.jobs) {
      for (const CommunicatorPtr& other : job.also) other->SetState(ended.error);
      if (job.sets_runner) job.runner->SetState(ended.error);
    }
    return ended.error;
  }
  // Communicators of several ranks in one group wait for each other.
  std::vector<NcclResult> results(ended.jobs.size(), kNcclSuccess);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ended.jobs.size(); ++i) {
    if (ended.jobs.size() == 1 || !ended.jobs[i].runner->is_blocking()) {
      results[i] = RunJob(ended.jobs[i]);
    } else {
      threads.emplace_back([&, i] { results[i] = RunJob(ended.jobs[i]); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  NcclResult result = kNcclSuccess;
  for (const NcclResult each : results) result = Combine(result, each);
  for (const auto& [communicator, operations] : ended.operations) {
    if (IsError(result)) break;
    if (communicator->is_blocking()) {
      result = Combine(result, communicator->Enqueue(operations));
    } else {
      communicator->RunInBackground([communicator = communicator, operations = operations] {
        communicator->SetState(communicator->Enqueue(operations));
      });
      result = Combine(result, kNcclInProgress);
    }
  }
  return result;
}

// Calls `body` unless the call is to fail. An error in a group is the group's too.
template <typename Body>
NcclResult Call(const char* function, int since, const Body& body) {
  NcclResult result;
  const std::optional<NcclResult> asked = CountCall(function);
  if (Version() < since) {
    result = Fail(kNcclInvalidUsage, std::string("this version of NCCL has no ") + function);
  } else if (asked.has_value()) {
    result = Fail(*asked, std::string(function) + " fails because a test has asked for it");
  } else {
    result = body();
  }
  if (group.depth > 0 && IsError(result) && !IsError(group.error)) group.error = result;
  return result;
}

// Adds `job` to the group, or runs it.
NcclResult Add(Job job) {
  ++group.depth;
  group.jobs.push_back(std::move(job));
  return EndGroup();
}

NcclResult Add(const CommunicatorPtr& communicator, Operation operation) {
  auto entry = std::find_if(group.operations.begin(), group.operations.end(),
                            [&](const auto& entry) { return entry.first == communicator; });
  if (entry == group.operations.end()) {
    if (!communicator->Enter()) return UsedByAnother();
    entry = group.operations.insert(entry, {communicator, {}});
  }
  ++group.depth;
  entry->second.push_back(std::move(operation));
  AwaitOperations();
  return EndGroup();
}

// Whether the communicator is blocking by its configuration; `otherwise` where that does not say.
NcclResult ReadConfig(const NcclConfig* config, bool otherwise, bool* is_blocking) {
  *is_blocking = otherwise;
  if (config == nullptr) return kNcclSuccess;
  NcclConfig known;
  std::memcpy(&known, config, std::min(config->size, sizeof known));
  if (known.magic != NcclConfig().magic) {
    return Fail(kNcclInvalidArgument, "the configuration was not initialised");
  }
  if (known.blocking == kNcclConfigUndefined) return kNcclSuccess;
  if (known.blocking != 0 && known.blocking != 1) {
    return Fail(kNcclInvalidArgument, "blocking is neither 0 nor 1");
  }
  *is_blocking = known.blocking == 1;
  return kNcclSuccess;
}

NcclResult InitRank(NcclComm* made, int ranks, const NcclUniqueId& id, int rank,
                    const NcclConfig* config) {
  if (made == nullptr || ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) {
    return Fail(kNcclInvalidArgument, "there is no such rank");
  }
  *made = nullptr;
  bool is_blocking;
  if (const NcclResult result = ReadConfig(config, true, &is_blocking); result != kNcclSuccess) {
    return result;
  }
  CommunicatorPtr communicator;
  if (const NcclResult result = Communicator::Make(rank, ranks, is_blocking, &communicator);
      result != kNcclSuccess) {
    return result;
  }
  AddCommunicator(communicator, made);
  return Add(
      {communicator, {}, true, [communicator, id] { return communicator->Init(id, nullptr); }});
}

template <typename T>
std::vector<unsigned char> Pack(const T& value) {
  std::vector<unsigned char> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

template <typename T>
T Unpack(const std::vector<unsigned char>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Exchanges a new id, which the `first` of `members` (ranks of `parent`) makes.
NcclResult ShareNewId(Communicator& parent, const std::vector<int>& members, int first,
                      const Communicator* child, std::vector<NcclUniqueId>* ids) {
  NcclUniqueId id = {};
  std::string error;
  if (parent.rank() == first && !Segment::Create(&id, &error)) {
    return Fail(kNcclSystemError, error);
  }
  std::vector<std::vector<unsigned char>> received;
  const NcclResult result = parent.Exchange(members, Pack(id), child, &received);
  if (result != kNcclSuccess) {
    if (parent.rank() == first) Segment::Forget(id);
    return result;
  }
  for (const auto& bytes : received) ids->push_back(Unpack<NcclUniqueId>(bytes));
  return kNcclSuccess;
}

struct ColorAndKey {
  int color;
  int key;
};

NcclResult SplitNow(Communicator& parent, Communicator* child, ColorAndKey own) {
  std::vector<int> everybody;
  for (int rank = 0; rank < parent.ranks(); ++rank) everybody.push_back(rank);
  std::vector<std::vector<unsigned char>> received;
  NcclResult result = parent.Exchange(everybody, Pack(own), child, &received);
  if (result != kNcclSuccess) return result;
  std::vector<std::pair<int, int>> keys;  // And ranks of the parent.
  for (int rank : everybody) {
    const auto other = Unpack<ColorAndKey>(received[static_cast<size_t>(rank)]);
    if (own.color != kNcclSplitNoColor && other.color == own.color) {
      keys.emplace_back(other.key, rank);
    }
  }
  std::sort(keys.begin(), keys.end());
  const int first = keys.empty() ? -1 : keys[0].second;
  std::vector<NcclUniqueId> ids;
  result = ShareNewId(parent, everybody, first, child, &ids);
  if (result != kNcclSuccess || child == nullptr) return result;
  const auto place = std::find_if(keys.begin(), keys.end(),
                                  [&](const auto& key) { return key.second == parent.rank(); });
  child->SetPlace(static_cast<int>(place - keys.begin()), static_cast<int>(keys.size()));
  return child->Init(ids[static_cast<size_t>(first)], &parent);
}

NcclResult ShrinkNow(Communicator& parent, Communicator& child, const std::vector<int>& members,
                     int flags) {
  if (flags == kNcclShrinkAbort) parent.Revoke();
  std::vector<NcclUniqueId> ids;
  const NcclResult result = ShareNewId(parent, members, members[0], &child, &ids);
  return result == kNcclSuccess ? child.Init(ids[0], &parent) : result;
}

// A communicator made from `parent`, on its device.
NcclResult MakeChild(const CommunicatorPtr& parent, int rank, int ranks, const NcclConfig* config,
                     CommunicatorPtr* child) {
  bool is_blocking;
  const NcclResult result = ReadConfig(config, parent->is_blocking(), &is_blocking);
  if (result == kNcclSuccess) *child = Communicator::MakeFrom(*parent, rank, ranks, is_blocking);
  return result;
}

NcclResult InProgress() {
  return Fail(kNcclInvalidArgument, "an earlier call on the communicator is still in progress");
}

// In progress on an earlier call, or failed: what nothing can be made from.
NcclResult CheckParent(Communicator& parent, bool may_have_failed) {
  const NcclResult state = parent.state();
  if (state == kNcclInProgress) return InProgress();
  if (state != kNcclSuccess && !may_have_failed) return Fail(state, "the communicator has failed");
  return kNcclSuccess;
}

// Whether the buffers of an operation are what it needs. `sent` and `received` in elements.
NcclResult CheckBuffers(const Communicator& communicator, const Operation& operation, size_t sent,
                        size_t received) {
  const size_t size = SizeOf(operation.dtype);
  std::string error;
  const Driver& driver = Driver::Get();
  if (!driver.CheckReachable(operation.send, sent * size, communicator.device(), &error) ||
      !driver.CheckReachable(operation.receive, received * size, communicator.device(), &error)) {
    return Fail(kNcclInvalidArgument, error);
  }
  return kNcclSuccess;
}

// Checks an operation of `handle` and adds it. `sent` and `received` say how many parts of `count`
// elements the buffers hold for a rank: 0, 1, or one for each rank (kAll).
constexpr int kAll = -1;
NcclResult AddOperation(NcclComm handle, Operation operation, NcclRedOp op, int sent,
                        int received) {
  const CommunicatorPtr communicator = Find(handle);
  if (communicator == nullptr) return NoCommunicator();
  if (const NcclResult result = communicator->CheckReady(); result != kNcclSuccess) return result;
  const bool is_float8 = operation.dtype == kNcclFloat8E4M3 || operation.dtype == kNcclFloat8E5M2;
  if (SizeOf(operation.dtype) == 0 || (is_float8 && Version() < NcclVersion(2, 24, 0))) {
    return Fail(kNcclInvalidArgument, "there is no such data type");
  }
  if (operation.root < 0 || operation.root >= communicator->ranks()) {
    return Fail(kNcclInvalidArgument, "there is no such root or peer");
  }
  if (op >= kNcclSum && op <= kNcclAvg) {
    operation.op = op;
  } else {
    MadeReduction made;
    if (!communicator->FindReduction(op, &made) || made.dtype != operation.dtype) {
      return Fail(kNcclInvalidArgument, "there is no such reduction for this data type");
    }
    operation.op = kNcclSum;
    operation.scalar = made.scalar;
  }
  const auto elements = [&](int parts) {
    return operation.count * static_cast<size_t>(parts == kAll ? communicator->ranks() : parts);
  };
  const NcclResult result =
      CheckBuffers(*communicator, operation, elements(sent), elements(received));
  if (result != kNcclSuccess) return result;
  const bool is_message = operation.kind == Kind::kSend || operation.kind == Kind::kReceive;
  if (operation.count == 0 && !is_message) return kNcclSuccess;
  return Add(communicator, std::move(operation));
}

// Whether `handle` is of the rank `root`, for operations whose root has more buffers.
bool IsRoot(NcclComm handle, int root) {
  const CommunicatorPtr communicator = Find(handle);
  return communicator != nullptr && communicator->rank() == root;
}

Operation MakeOperation(Kind kind, const void* send, void* receive, size_t count,
                        NcclDataType dtype, NcclStream stream, int root = 0) {
  Operation operation;
  operation.kind = kind;
  operation.send = send;
  operation.receive = receive;
  operation.count = count;
  operation.dtype = dtype;
  operation.root = root;
  operation.stream = stream;
  return operation;
}

// Calls `function` for `comm`, or for all communicators of rank `rank`. Returns how many.
int ForEach(NcclComm comm, int rank, const std::function<void(Communicator&)>& function) {
  std::vector<CommunicatorPtr> found;
  {
    Objects& objects = TheObjects();
    const std::lock_guard<std::mutex> lock(objects.mutex);
    for (const auto& [handle, communicator] : objects.communicators) {
      const bool is_meant = comm != nullptr ? handle == reinterpret_cast<uintptr_t>(comm)
                                            : rank == -1 || communicator->rank() == rank;
      if (is_meant) found.push_back(communicator);
    }
  }
  for (const CommunicatorPtr& communicator : found) function(*communicator);
  return static_cast<int>(found.size());
}

// Registers something of a communicator.
NcclResult Register(NcclComm comm, const void* buffer, size_t bytes, uintptr_t* handle) {
  const CommunicatorPtr communicator = Find(comm);
  const Use use(communicator);
  if (use.result() != kNcclSuccess) return use.result();
  if (const NcclResult result = CheckParent(*communicator, false); result != kNcclSuccess) {
    return result;
  }
  std::string error;
  if (!Driver::Get().CheckReachable(buffer, bytes, communicator->device(), &error)) {
    return Fail(kNcclInvalidArgument, error);
  }
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  *handle = NewHandle(objects);
  objects.registrations[*handle] = reinterpret_cast<uintptr_t>(comm);
  return kNcclSuccess;
}

NcclResult Deregister(NcclComm comm, uintptr_t handle) {
  const CommunicatorPtr communicator = Find(comm);
  const Use use(communicator);
  if (use.result() != kNcclSuccess) return use.result();
  if (communicator->state() == kNcclInProgress) return InProgress();
  Objects& objects = TheObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.registrations.find(handle);
  if (found == objects.registrations.end() || found->second != reinterpret_cast<uintptr_t>(comm)) {
    return Fail(kNcclInvalidArgument, "there is no such registration");
  }
  objects.registrations.erase(found);
  return kNcclSuccess;
}

template <typename T>
NcclResult Query(NcclComm comm, T* value, T (*get)(Communicator&)) {
  const CommunicatorPtr communicator = Find(comm);
  if (communicator == nullptr) return NoCommunicator();
  if (value == nullptr) return Fail(kNcclInvalidArgument, "there is no place for the result");
  *value = get(*communicator);
  return kNcclSuccess;
}

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;       // NOLINT: as above.
using namespace syncline::nccl;  // NOLINT

extern "C" {

NcclResult ncclGetVersion(int* version) {
  return Call("ncclGetVersion", 0, [&] {
    if (version == nullptr) return Fail(kNcclInvalidArgument, "there is no place for the result");
    *version = Version();
    return kNcclSuccess;
  });
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "unhandled cuda error";
    case kNcclSystemError:
      return "unhandled system error";
    case kNcclInternalError:
      return "internal error";
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    case kNcclInProgress:
      return "NCCL operation in progress";
    case kNcclTimeout:
      return "timeout";
  }
  return "unknown result code";
}

const char* ncclGetLastError(NcclComm) { return LastError(); }

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  return Call("ncclGetUniqueId", 0, [&] {
    std::string error;
    if (id == nullptr) return Fail(kNcclInvalidArgument, "there is no place for the result");
    return Segment::Create(id, &error) ? kNcclSuccess : Fail(kNcclSystemError, error);
  });
}

NcclResult ncclCommInitRank(NcclComm* comm, int ranks, NcclUniqueId id, int rank) {
  return Call("ncclCommInitRank", 0, [&] { return InitRank(comm, ranks, id, rank, nullptr); });
}

NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  return Call("ncclCommInitRankConfig", 0, [&] { return InitRank(comm, ranks, id, rank, config); });
}

NcclResult ncclCommInitRankScalable(NcclComm* comm, int ranks, int rank, int ids, NcclUniqueId* id,
                                    NcclConfig* config) {
  return Call("ncclCommInitRankScalable", NcclVersion(2, 23, 0), [&] {
    if (id == nullptr || ids < 1 || ids > ranks) {
      return Fail(kNcclInvalidArgument, "the number of ids is wrong");
    }
    return InitRank(comm, ranks, *id, rank, config);
  });
}

NcclResult ncclCommFinalize(NcclComm comm) {
  return Call("ncclCommFinalize", 0, [&]() -> NcclResult {
    const CommunicatorPtr communicator = Find(comm);
    const Use use(communicator);
    if (use.result() != kNcclSuccess) return use.result();
    if (const NcclResult result = communicator->CheckReady(); result != kNcclSuccess) {
      return result;
    }
    return Add({communicator, {}, true, [communicator] { return communicator->Finalize(); }});
  });
}

NcclResult ncclCommDestroy(NcclComm comm) {
  return Call("ncclCommDestroy", 0, [&] {
    if (comm == nullptr) return kNcclSuccess;
    const CommunicatorPtr communicator = Find(comm);
    if (communicator == nullptr) return NoCommunicator();
    const NcclResult result = communicator->Finalize();
    // Or else it was aborted meanwhile.
    if (Remove(comm) != nullptr) communicator->Abort();
    return result;
  });
}

NcclResult ncclCommAbort(NcclComm comm) {
  return Call("ncclCommAbort", 0, [&] {
    if (comm == nullptr) return kNcclSuccess;
    const CommunicatorPtr communicator = Remove(comm);
    if (communicator == nullptr) return NoCommunicator();
    communicator->Abort();
    AwaitAborts();
    return kNcclSuccess;
  });
}

NcclResult ncclCommRevoke(NcclComm comm, int flags) {
  return Call("ncclCommRevoke", NcclVersion(2, 28, 7), [&]() -> NcclResult {
    const CommunicatorPtr communicator = Find(comm);
    if (communicator == nullptr) return NoCommunicator();
    if (flags != kNcclRevokeDefault) return Fail(kNcclInvalidArgument, "there is no such flag");
    return Add({communicator, {}, true, [communicator] {
                  communicator->Revoke();
                  return kNcclSuccess;
                }});
  });
}

NcclResult ncclCommSplit(NcclComm comm, int color, int key, NcclComm* made, NcclConfig* config) {
  return Call("ncclCommSplit", 0, [&]() -> NcclResult {
    const CommunicatorPtr parent = Find(comm);
    const Use use(parent);
    if (use.result() != kNcclSuccess) return use.result();
    if (made == nullptr || (color < 0 && color != kNcclSplitNoColor)) {
      return Fail(kNcclInvalidArgument, "there is no such color");
    }
    *made = nullptr;
    if (const NcclResult result = CheckParent(*parent, false); result != kNcclSuccess) {
      return result;
    }
    CommunicatorPtr child;
    if (color != kNcclSplitNoColor) {
      const NcclResult result = MakeChild(parent, 0, 1, config, &child);
      if (result != kNcclSuccess) return result;
      AddCommunicator(child, made);
    }
    const auto body = [parent, child, color, key] {
      return SplitNow(*parent, child.get(), {color, key});
    };
    std::vector<CommunicatorPtr> also;
    if (child != nullptr) also.push_back(child);
    return Add({parent, also, false, body});
  });
}

NcclResult ncclCommShrink(NcclComm comm, int* excluded, int excluded_count, NcclComm* made,
                          NcclConfig* config, int flags) {
  return Call("ncclCommShrink", NcclVersion(2, 27, 0), [&]() -> NcclResult {
    const CommunicatorPtr parent = Find(comm);
    if (parent == nullptr) return NoCommunicator();
    if (made == nullptr || excluded == nullptr || excluded_count < 1 ||
        (flags != kNcclShrinkDefault && flags != kNcclShrinkAbort)) {
      return Fail(kNcclInvalidArgument, "there is nobody to exclude, or no such flag");
    }
    *made = nullptr;
    const NcclResult ready = CheckParent(*parent, flags == kNcclShrinkAbort);
    if (ready != kNcclSuccess) return ready;
    std::vector<int> members;
    for (int rank = 0; rank < parent->ranks(); ++rank) {
      if (std::find(excluded, excluded + excluded_count, rank) == excluded + excluded_count) {
        members.push_back(rank);
      }
    }
    const auto place = std::find(members.begin(), members.end(), parent->rank());
    if (place == members.end()) {
      return Fail(kNcclInvalidArgument, "the calling rank is excluded");
    }
    CommunicatorPtr child;
    const NcclResult result = MakeChild(parent, static_cast<int>(place - members.begin()),
                                        static_cast<int>(members.size()), config, &child);
    if (result != kNcclSuccess) return result;
    AddCommunicator(child, made);
    const auto body = [parent, child, members, flags] {
      return ShrinkNow(*parent, *child, members, flags);
    };
    return Add({parent, {child}, false, body});
  });
}

NcclResult ncclCommGetUniqueId(NcclComm comm, NcclUniqueId* id) {
  return Call("ncclCommGetUniqueId", NcclVersion(2, 29, 2), [&] {
    std::string error;
    if (Find(comm) == nullptr) return NoCommunicator();
    return Segment::Create(id, &error) ? kNcclSuccess : Fail(kNcclSystemError, error);
  });
}

NcclResult ncclCommGrow(NcclComm comm, int ranks, const NcclUniqueId* id, int rank, NcclComm* made,
                        NcclConfig* config) {
  return Call("ncclCommGrow", NcclVersion(2, 29, 2), [&]() -> NcclResult {
    if (made == nullptr) return Fail(kNcclInvalidArgument, "there is no place for the result");
    *made = nullptr;
    if (comm == nullptr) {
      if (id == nullptr) return Fail(kNcclInvalidArgument, "a new rank needs the id");
      return InitRank(made, ranks, *id, rank, config);
    }
    const CommunicatorPtr parent = Find(comm);
    if (parent == nullptr) return NoCommunicator();
    if (rank != -1 || ranks <= parent->ranks() || ranks > kMaxRanks) {
      return Fail(kNcclInvalidArgument, "ranks that are there grow to more, and keep theirs");
    }
    if (const NcclResult ready = CheckParent(*parent, false); ready != kNcclSuccess) return ready;
    CommunicatorPtr child;
    const NcclResult result = MakeChild(parent, parent->rank(), ranks, config, &child);
    if (result != kNcclSuccess) return result;
    AddCommunicator(child, made);
    const NcclUniqueId own = id == nullptr ? NcclUniqueId{} : *id;
    return Add({parent, {child}, false, [parent, child, own, has_id = id != nullptr] {
                  std::vector<int> everybody;
                  for (int each = 0; each < parent->ranks(); ++each) everybody.push_back(each);
                  std::vector<std::vector<unsigned char>> received;
                  std::vector<unsigned char> sent = Pack(own);
                  sent.push_back(has_id ? 1 : 0);
                  const NcclResult result =
                      parent->Exchange(everybody, sent, child.get(), &received);
                  if (result != kNcclSuccess) return result;
                  for (const auto& bytes : received) {
                    if (bytes.back() != 0)
                      return child->Init(Unpack<NcclUniqueId>(bytes), parent.get());
                  }
                  return Fail(kNcclInvalidUsage, "no rank has the id");
                }});
  });
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* error) {
  return Call("ncclCommGetAsyncError", 0, [&] {
    return Query<NcclResult>(comm, error, [](Communicator& found) { return found.state(); });
  });
}

NcclResult ncclCommCount(NcclComm comm, int* count) {
  return Call("ncclCommCount", 0, [&] {
    return Query<int>(comm, count, [](Communicator& found) { return found.ranks(); });
  });
}

NcclResult ncclCommCuDevice(NcclComm comm, int* device) {
  return Call("ncclCommCuDevice", 0, [&] {
    return Query<int>(comm, device, [](Communicator& found) { return found.device(); });
  });
}

NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  return Call("ncclCommUserRank", 0, [&] {
    return Query<int>(comm, rank, [](Communicator& found) { return found.rank(); });
  });
}

NcclResult ncclRedOpCreatePreMulSum(NcclRedOp* op, void* scalar, NcclDataType dtype,
                                    NcclScalarResidence residence, NcclComm comm) {
  return Call("ncclRedOpCreatePreMulSum", 0, [&]() -> NcclResult {
    const CommunicatorPtr communicator = Find(comm);
    const Use use(communicator);
    if (use.result() != kNcclSuccess) return use.result();
    if (const NcclResult result = communicator->CheckReady(); result != kNcclSuccess) {
      return result;
    }
    const size_t size = SizeOf(dtype);
    if (op == nullptr || scalar == nullptr || size == 0) {
      return Fail(kNcclInvalidArgument, "there is no scalar, or no such data type");
    }
    auto made = std::make_shared<Scalar>();
    if (residence == kNcclScalarHostImmediate) {
      std::memcpy(made->value, scalar, size);
    } else {
      made->address = scalar;
    }
    *op = communicator->AddReduction({dtype, made});
    return kNcclSuccess;
  });
}

NcclResult ncclRedOpDestroy(NcclRedOp op, NcclComm comm) {
  return Call("ncclRedOpDestroy", 0, [&] {
    const CommunicatorPtr communicator = Find(comm);
    const Use use(communicator);
    if (use.result() != kNcclSuccess) return use.result();
    return communicator->RemoveReduction(op)
               ? kNcclSuccess
               : Fail(kNcclInvalidArgument, "there is no such reduction");
  });
}

NcclResult ncclReduce(const void* send, void* receive, size_t count, NcclDataType dtype,
                      NcclRedOp op, int root, NcclComm comm, NcclStream stream) {
  return Call("ncclReduce", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kReduce, send, receive, count, dtype, stream, root), op,
                        1, IsRoot(comm, root) ? 1 : 0);
  });
}

NcclResult ncclBroadcast(const void* send, void* receive, size_t count, NcclDataType dtype,
                         int root, NcclComm comm, NcclStream stream) {
  return Call("ncclBroadcast", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kBroadcast, send, receive, count, dtype, stream, root),
                        kNcclSum, IsRoot(comm, root) ? 1 : 0, 1);
  });
}

NcclResult ncclBcast(void* buffer, size_t count, NcclDataType dtype, int root, NcclComm comm,
                     NcclStream stream) {
  return Call("ncclBcast", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kBroadcast, buffer, buffer, count, dtype, stream, root),
                        kNcclSum, 1, 1);
  });
}

NcclResult ncclAllReduce(const void* send, void* receive, size_t count, NcclDataType dtype,
                         NcclRedOp op, NcclComm comm, NcclStream stream) {
  return Call("ncclAllReduce", 0, [&] {
    return AddOperation(comm, MakeOperation(Kind::kAllReduce, send, receive, count, dtype, stream),
                        op, 1, 1);
  });
}

NcclResult ncclReduceScatter(const void* send, void* receive, size_t count, NcclDataType dtype,
                             NcclRedOp op, NcclComm comm, NcclStream stream) {
  return Call("ncclReduceScatter", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kReduceScatter, send, receive, count, dtype, stream),
                        op, kAll, 1);
  });
}

NcclResult ncclAllGather(const void* send, void* receive, size_t count, NcclDataType dtype,
                         NcclComm comm, NcclStream stream) {
  return Call("ncclAllGather", 0, [&] {
    return AddOperation(comm, MakeOperation(Kind::kAllGather, send, receive, count, dtype, stream),
                        kNcclSum, 1, kAll);
  });
}

NcclResult ncclAlltoAll(const void* send, void* receive, size_t count, NcclDataType dtype,
                        NcclComm comm, NcclStream stream) {
  return Call("ncclAlltoAll", NcclVersion(2, 28, 0), [&] {
    return AddOperation(comm, MakeOperation(Kind::kAllToAll, send, receive, count, dtype, stream),
                        kNcclSum, kAll, kAll);
  });
}

NcclResult ncclGather(const void* send, void* receive, size_t count, NcclDataType dtype, int root,
                      NcclComm comm, NcclStream stream) {
  return Call("ncclGather", NcclVersion(2, 28, 0), [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kGather, send, receive, count, dtype, stream, root),
                        kNcclSum, 1, IsRoot(comm, root) ? kAll : 0);
  });
}

NcclResult ncclScatter(const void* send, void* receive, size_t count, NcclDataType dtype, int root,
                       NcclComm comm, NcclStream stream) {
  return Call("ncclScatter", NcclVersion(2, 28, 0), [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kScatter, send, receive, count, dtype, stream, root),
                        kNcclSum, IsRoot(comm, root) ? kAll : 0, 1);
  });
}

NcclResult ncclSend(const void* buffer, size_t count, NcclDataType dtype, int peer, NcclComm comm,
                    NcclStream stream) {
  return Call("ncclSend", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kSend, buffer, nullptr, count, dtype, stream, peer),
                        kNcclSum, 1, 0);
  });
}

NcclResult ncclRecv(void* buffer, size_t count, NcclDataType dtype, int peer, NcclComm comm,
                    NcclStream stream) {
  return Call("ncclRecv", 0, [&] {
    return AddOperation(comm,
                        MakeOperation(Kind::kReceive, nullptr, buffer, count, dtype, stream, peer),
                        kNcclSum, 0, 1);
  });
}

NcclResult ncclGroupStart() {
  return Call("ncclGroupStart", 0, [&] {
    ++group.depth;
    return kNcclSuccess;
  });
}

NcclResult ncclGroupEnd() {
  const int depth = group.depth;
  const NcclResult result = Call("ncclGroupEnd", 0, [&] {
    if (depth == 0) return Fail(kNcclInvalidUsage, "there is no group to end");
    return EndGroup();
  });
  // It was made to fail, which is the group's error now, and ends it all the same.
  return depth > 0 && group.depth == depth ? Combine(EndGroup(), result) : result;
}

NcclResult ncclMemAlloc(void** address, size_t bytes) {
  return Call("ncclMemAlloc", NcclVersion(2, 19, 0), [&] {
    std::string error;
    if (address == nullptr || bytes == 0) {
      return Fail(kNcclInvalidArgument, "there is nothing to allocate");
    }
    if (!Driver::Get().Allocate(bytes, address, &error)) {
      return Fail(kNcclUnhandledCudaError, error);
    }
    const std::lock_guard<std::mutex> lock(TheObjects().mutex);
    TheObjects().allocations[reinterpret_cast<uintptr_t>(*address)] = bytes;
    return kNcclSuccess;
  });
}

NcclResult ncclMemFree(void* address) {
  return Call("ncclMemFree", NcclVersion(2, 19, 0), [&] {
    std::string error;
    if (address == nullptr) return kNcclSuccess;
    {
      const std::lock_guard<std::mutex> lock(TheObjects().mutex);
      if (TheObjects().allocations.erase(reinterpret_cast<uintptr_t>(address)) == 0) {
        return Fail(kNcclInvalidArgument, "ncclMemAlloc has not made this memory");
      }
    }
    return Driver::Get().Free(address, &error) ? kNcclSuccess
                                               : Fail(kNcclUnhandledCudaError, error);
  });
}

NcclResult ncclCommRegister(NcclComm comm, void* buffer, size_t bytes, void** handle) {
  return Call("ncclCommRegister", NcclVersion(2, 19, 0), [&] {
    uintptr_t made = 0;
    const NcclResult result = Register(comm, buffer, bytes, &made);
    *handle = reinterpret_cast<void*>(made);
    return result;
  });
}

NcclResult ncclCommDeregister(NcclComm comm, void* handle) {
  return Call("ncclCommDeregister", NcclVersion(2, 19, 0),
              [&] { return Deregister(comm, reinterpret_cast<uintptr_t>(handle)); });
}

NcclResult ncclCommWindowRegister(NcclComm comm, void* buffer, size_t bytes, NcclWindow* window,
                                  int) {
  return Call("ncclCommWindowRegister", NcclVersion(2, 27, 0), [&] {
    uintptr_t made = 0;
    const NcclResult result = Register(comm, buffer, bytes, &made);
    *window = reinterpret_cast<NcclWindow>(made);
    return result;
  });
}

NcclResult ncclCommWindowDeregister(NcclComm comm, NcclWindow window) {
  return Call("ncclCommWindowDeregister", NcclVersion(2, 27, 0),
              [&] { return Deregister(comm, reinterpret_cast<uintptr_t>(window)); });
}

int fake_nccl_set_async_error(NcclComm comm, int rank, NcclResult result) {
  return ForEach(comm, rank, [&](Communicator& found) { found.SetAsyncError(result); });
}

int fake_nccl_set_stalled(NcclComm comm, int rank, int is_stalled) {
  return ForEach(comm, rank, [&](Communicator& found) { found.SetStalled(is_stalled != 0); });
}

void fake_nccl_hold_aborts(int is_held) {
  HeldAborts& held = TheHeldAborts();
  const std::lock_guard<std::mutex> lock(held.mutex);
  held.are_held = is_held != 0;
  held.changed.notify_all();
}

void fake_nccl_hold_operations(int is_held) {
  HeldOperations& held = TheHeldOperations();
  const std::lock_guard<std::mutex> lock(held.mutex);
  held.are_held = is_held != 0;
  held.changed.notify_all();
}

int fake_nccl_held_operations() {
  HeldOperations& held = TheHeldOperations();
  const std::lock_guard<std::mutex> lock(held.mutex);
  return held.are_held ? held.waiting : 0;
}

int fake_nccl_live_communicators() {
  const std::lock_guard<std::mutex> lock(TheObjects().mutex);
  return static_cast<int>(TheObjects().communicators.size());
}

int fake_nccl_live_registrations() {
  const std::lock_guard<std::mutex> lock(TheObjects().mutex);
  return static_cast<int>(TheObjects().registrations.size());
}

int fake_nccl_live_allocations() {
  const std::lock_guard<std::mutex> lock(TheObjects().mutex);
  return static_cast<int>(TheObjects().allocations.size());
}

}  // extern "C"
