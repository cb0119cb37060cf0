#include "backends/nccl/testing/fake_nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backends/nccl/testing/fake_nccl/driver.h"
#include "backends/nccl/testing/fake_nccl/settings.h"

namespace fake_nccl {

using syncline::nccl::kNcclInProgress;
using syncline::nccl::kNcclInternalError;
using syncline::nccl::kNcclInvalidArgument;
using syncline::nccl::kNcclInvalidUsage;
using syncline::nccl::kNcclSuccess;
using syncline::nccl::kNcclSystemError;
using syncline::nccl::kNcclUnhandledCudaError;
using syncline::nccl::NcclRedOp;
using syncline::nccl::NcclResult;
using syncline::nccl::NcclStream;
using syncline::nccl::NcclUniqueId;

namespace {

struct ErrorText {
  std::mutex mutex;
  std::string text;
};

ErrorText& TheErrorText() {
  static ErrorText* const text = new ErrorText;
  return *text;
}

bool MayShareDevices() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::strcmp(value, "1") == 0 &&
         Version() >= syncline::nccl::NcclVersion(2, 30, 0);
}

}  // namespace

NcclResult Fail(NcclResult result, const std::string& message) {
  const std::lock_guard<std::mutex> lock(TheErrorText().mutex);
  TheErrorText().text = message;
  return result;
}

const char* LastError() {
  thread_local std::string text __attribute__((tls_model("initial-exec")));  // As `group`.
  const std::lock_guard<std::mutex> lock(TheErrorText().mutex);
  text = TheErrorText().text;
  return text.c_str();
}

struct Communicator::Plan {
  std::shared_ptr<Communicator> communicator;
  std::vector<Operation> operations;
  bool is_captured = false;  // Runs whenever its graph does.
  uint64_t turn = 0;         // Unless captured.
  // Streams beside the first. Below: guarded by the communicator's mutex_.
  size_t beside = 0;
  size_t arrived = 0;  // Of these.
  uint64_t runs = 0;   // That have ended: these streams then go on.
  bool is_dropped = false;
};

namespace {

// What streams will call, by the number that they are given: a driver that drops its work after an
// error never calls, and one may call when the communicator has been freed.
struct StreamCall {
  std::shared_ptr<Communicator::Plan> plan;
  bool is_first;
  bool stays;
};

struct StreamCalls {
  std::mutex mutex;
  std::map<uintptr_t, StreamCall> calls;
  uintptr_t last = 0;
};

StreamCalls& TheStreamCalls() {
  static StreamCalls* const calls = new StreamCalls;
  return *calls;
}

uintptr_t AddStreamCall(StreamCall call) {
  StreamCalls& calls = TheStreamCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  calls.calls[++calls.last] = std::move(call);
  return calls.last;
}

void RemoveStreamCall(uintptr_t number) {
  StreamCalls& calls = TheStreamCalls();
  StreamCall removed;  // Destroyed without the lock.
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.calls.find(number);
  if (found == calls.calls.end()) return;
  removed = std::move(found->second);
  calls.calls.erase(found);
}

// Those of a communicator that ends.
void RemoveStreamCallsOf(const Communicator* communicator) {
  StreamCalls& calls = TheStreamCalls();
  std::vector<StreamCall> removed;  // As above.
  const std::lock_guard<std::mutex> lock(calls.mutex);
  for (auto call = calls.calls.begin(); call != calls.calls.end();) {
    if (call->second.plan->communicator.get() == communicator) {
      removed.push_back(std::move(call->second));
      call = calls.calls.erase(call);
    } else {
      ++call;
    }
  }
}

void CallOfStream(void* data) {
  const auto number = reinterpret_cast<uintptr_t>(data);
  StreamCall call;
  {
    StreamCalls& calls = TheStreamCalls();
    const std::lock_guard<std::mutex> lock(calls.mutex);
    const auto found = calls.calls.find(number);
    if (found == calls.calls.end()) return;
    call = found->second;
    if (!call.stays) calls.calls.erase(found);
  }
  Communicator& communicator = *call.plan->communicator;
  if (call.is_first) {
    communicator.Run(*call.plan);
  } else {
    communicator.RunBeside(*call.plan);
  }
}

}  // namespace

NcclResult Communicator::Make(int rank, int ranks, bool is_blocking,
                              std::shared_ptr<Communicator>* made) {
  int device;
  std::string bus_id;
  std::string error;
  syncline::device::CUcontext context;
  if (!Driver::Get().CurrentDevice(&device, &bus_id, &error) ||
      !Driver::Get().CurrentContext(&context, &error)) {
    return Fail(kNcclUnhandledCudaError, error);
  }
  made->reset(new Communicator(rank, ranks, is_blocking, device, bus_id, context));
  return kNcclSuccess;
}

std::shared_ptr<Communicator> Communicator::MakeFrom(const Communicator& parent, int rank,
                                                     int ranks, bool is_blocking) {
  return std::shared_ptr<Communicator>(
      new Communicator(rank, ranks, is_blocking, parent.device_, parent.bus_id_, parent.context_));
}

Communicator::~Communicator() {
  if (!background_.joinable()) return;
  // The last owner may be that thread.
  if (background_.get_id() == std::this_thread::get_id()) {
    background_.detach();
  } else {
    background_.join();
  }
}

void Communicator::SetPlace(int rank, int ranks) {
  const Lock lock(mutex_);
  rank_ = rank;
  ranks_ = ranks;
}

bool Communicator::WaitUntil(Lock& lock, const std::atomic<bool>& stop,
                             const std::function<bool()>& condition) {
  while (!stop.load() && !condition()) changed_.wait(lock);
  return !stop.load();
}

NcclResult Communicator::Init(const NcclUniqueId& id, const Communicator* other) {
  const auto is_aborted = [&] {
    return is_aborted_.load() || (other != nullptr && other->is_aborted());
  };
  const auto aborted = [] { return Fail(kNcclInternalError, "the communicator was aborted"); };
  {
    Lock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(InitDelayMs());
    while (!is_aborted_.load() && std::chrono::steady_clock::now() < until) {
      changed_.wait_until(lock, until);
    }
  }
  std::string error;
  const std::shared_ptr<Segment> segment =
      is_aborted() ? nullptr : Segment::Open(id, ranks_, &error);
  if (segment == nullptr) {
    Segment::Forget(id);
    return is_aborted() ? aborted() : Fail(kNcclSystemError, error);
  }
  {
    const Lock lock(mutex_);
    segment_ = segment;
  }
  RankInfo info = {};
  info.device = device_;
  std::strncpy(info.bus_id, bus_id_.c_str(), sizeof info.bus_id - 1);
  if (!segment->Claim(rank_, info)) {
    return Fail(kNcclInvalidUsage, "rank " + std::to_string(rank_) + " has joined already");
  }
  while (!segment->HaveAllArrived()) {
    const uint32_t bell = segment->Doorbell(rank_);
    if (is_aborted()) break;
    if (!segment->HaveAllArrived()) segment->Wait(rank_, bell);
  }
  Segment::Forget(id);
  if (is_aborted()) return aborted();
  for (int rank = 0; rank < ranks_ && !MayShareDevices(); ++rank) {
    for (int lower = 0; lower < rank; ++lower) {
      if (std::strcmp(segment->InfoOf(rank).bus_id, segment->InfoOf(lower).bus_id) != 0) continue;
      return Fail(kNcclInvalidUsage, "ranks " + std::to_string(lower) + " and " +
                                         std::to_string(rank) + " are on one device, " +
                                         segment->InfoOf(rank).bus_id);
    }
  }
  return kNcclSuccess;
}

NcclResult Communicator::Enqueue(std::vector<Operation> operations) {
  const std::lock_guard<std::mutex> enqueue_lock(enqueue_mutex_);
  const Driver& driver = Driver::Get();
  std::vector<NcclStream> streams;
  auto plan = std::make_shared<Plan>();
  std::optional<NcclResult> async_error;
  {
    const Lock lock(mutex_);
    for (Operation& operation : operations) {
      operation.number = ++operations_;
      if (!async_error.has_value()) async_error = AsyncErrorOf(rank_, operation.number);
      if (std::find(streams.begin(), streams.end(), operation.stream) == streams.end()) {
        streams.push_back(operation.stream);
      }
    }
    driver.With(context_, [&] { plan->is_captured = driver.IsCapturing(streams[0]); });
    if (!plan->is_captured) plan->turn = next_turn_++;
  }
  if (async_error.has_value()) SetAsyncError(*async_error);
  plan->communicator = shared_from_this();
  plan->operations = std::move(operations);
  plan->beside = streams.size() - 1;
  // The first stream last, so that what fails is never half of a plan that runs.
  std::vector<uintptr_t> calls;
  for (size_t i = streams.size(); i-- > 0;) {
    calls.push_back(AddStreamCall({plan, i == 0, plan->is_captured}));
    std::string error;
    bool is_launched = false;
    driver.With(context_, [&] {
      is_launched =
          driver.Launch(streams[i], CallOfStream, reinterpret_cast<void*>(calls.back()), &error);
    });
    if (is_launched) continue;
    RemoveStreamCall(calls.back());
    const Lock lock(mutex_);
    plan->is_dropped = true;
    if (!plan->is_captured) {
      skipped_.insert(plan->turn);
      AdvanceTurn();
    }
    changed_.notify_all();
    return Fail(kNcclUnhandledCudaError, error);
  }
  return kNcclSuccess;
}

void Communicator::AdvanceTurn() {
  while (skipped_.erase(turn_) > 0) ++turn_;
}

void Communicator::Execute(const std::vector<Operation>& operations) {
  const bool is_stalled = std::any_of(
      operations.begin(), operations.end(),
      [&](const Operation& operation) { return IsStalledByEnvironment(rank_, operation.number); });
  Execution execution(*segment_, rank_, ranks_, operations);
  while (!execution.IsDone()) {
    const uint32_t bell = segment_->Doorbell(rank_);
    if (is_stopped_.load()) return;
    const bool is_held = is_stalled || is_stuck_.load() || is_stalled_.load();
    if (is_held || !execution.Progress()) segment_->Wait(rank_, bell);
  }
}

void Communicator::Run(Plan& plan) {
  Lock lock(mutex_);
  ++running_;
  if (plan.is_captured) plan.turn = next_turn_++;
  const uint64_t turn = plan.turn;
  const bool is_first =
      WaitUntil(lock, is_stopped_, [&] { return plan.arrived == plan.beside && turn_ == turn; });
  if (is_first) {
    lock.unlock();
    Execute(plan.operations);
    lock.lock();
    ++turn_;
    AdvanceTurn();
  }
  plan.arrived = 0;
  ++plan.runs;
  --running_;
  changed_.notify_all();
}

void Communicator::RunBeside(Plan& plan) {
  Lock lock(mutex_);
  ++running_;
  ++plan.arrived;
  changed_.notify_all();
  const uint64_t runs = plan.runs;
  WaitUntil(lock, is_stopped_, [&] { return plan.runs != runs || plan.is_dropped; });
  --running_;
  changed_.notify_all();
}

NcclResult Communicator::Exchange(const std::vector<int>& members,
                                  const std::vector<unsigned char>& data, const Communicator* other,
                                  std::vector<std::vector<unsigned char>>* received) {
  const std::lock_guard<std::mutex> exchange_lock(exchange_mutex_);
  if (segment_ == nullptr) return Fail(kNcclInvalidUsage, "the communicator was never complete");
  Transfers transfers(*segment_, Channel::kControl, rank_);
  received->assign(members.size(), data);
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank_) continue;
    transfers.Send(members[i], Kind::kControl, 0, data.data(), data.size());
    transfers.Receive(members[i], Kind::kControl, 0, (*received)[i].data(), data.size());
  }
  while (!transfers.IsDone()) {
    const uint32_t bell = segment_->Doorbell(rank_);
    if (is_aborted_.load() || (other != nullptr && other->is_aborted())) {
      return Fail(kNcclInternalError, "the communicator was aborted");
    }
    if (!transfers.Progress()) segment_->Wait(rank_, bell);
  }
  return kNcclSuccess;
}

NcclResult Communicator::Finish() {
  Lock lock(mutex_);
  if (WaitUntil(lock, is_stopped_, [&] { return turn_ == next_turn_ && running_ == 0; })) {
    return kNcclSuccess;
  }
  return is_aborted_.load() ? Fail(kNcclInternalError, "the communicator was aborted")
                            : kNcclSuccess;
}

NcclResult Communicator::Finalize() {
  const NcclResult result = Finish();
  if (result != kNcclSuccess || segment_ == nullptr) return result;
  const auto is_taken = [&] {
    if (StalledFinalize() == rank_) return false;
    for (int other = 0; other < ranks_; ++other) {
      if (other == rank_ || segment_->HasEnded(other)) continue;
      for (const Channel channel : {Channel::kCollective, Channel::kPointToPoint}) {
        if (!segment_->RingOf(channel, rank_, other).IsEmpty()) return false;
      }
    }
    return true;
  };
  while (!is_taken()) {
    const uint32_t bell = segment_->Doorbell(rank_);
    if (is_aborted_.load()) return Fail(kNcclInternalError, "the communicator was aborted");
    // An asynchronous error, which is the state already.
    if (is_stuck_.load()) return kNcclInternalError;
    if (!is_taken()) segment_->Wait(rank_, bell);
  }
  is_finalized_.store(true);
  return kNcclSuccess;
}

void Communicator::Revoke() {
  Lock lock(mutex_);
  is_stopped_.store(true);
  changed_.notify_all();
  if (segment_ != nullptr) segment_->RingDoorbell(rank_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

void Communicator::Abort() {
  is_aborted_.store(true);
  Revoke();
  JoinBackground();
  RemoveStreamCallsOf(this);
  if (segment_ == nullptr) return;
  for (int other = 0; other < ranks_ && AbortLoses() && !is_finalized_.load(); ++other) {
    for (const Channel channel : {Channel::kCollective, Channel::kPointToPoint}) {
      segment_->RingOf(channel, rank_, other).Lose();
    }
  }
  segment_->SetEnded(rank_);
}

NcclResult Communicator::state() {
  const Lock lock(mutex_);
  return state_;
}

void Communicator::SetState(NcclResult state) {
  const Lock lock(mutex_);
  // What a background job ends with does not hide an error that came meanwhile.
  if (is_stuck_.load()) return;
  state_ = state;
}

void Communicator::SetAsyncError(NcclResult error) {
  const Lock lock(mutex_);
  state_ = error;
  is_stuck_.store(error != kNcclSuccess);
  changed_.notify_all();
}

void Communicator::SetStalled(bool is_stalled) {
  is_stalled_.store(is_stalled);
  const Lock lock(mutex_);
  if (segment_ != nullptr) segment_->RingDoorbell(rank_);
}

NcclResult Communicator::CheckReady() {
  const NcclResult state = this->state();
  if (state == kNcclInProgress) {
    return Fail(kNcclInvalidArgument, "an earlier call on the communicator is still in progress");
  }
  if (state != kNcclSuccess) return Fail(state, "the communicator has failed");
  if (is_stopped_.load()) return Fail(kNcclInvalidUsage, "the communicator was revoked");
  return kNcclSuccess;
}

bool Communicator::Enter() {
  std::thread::id nobody;
  const std::thread::id self = std::this_thread::get_id();
  if (user_.load() != self && !user_.compare_exchange_strong(nobody, self)) return false;
  ++entered_;
  return true;
}

void Communicator::Leave() {
  if (--entered_ == 0) user_.store({});
}

void Communicator::RunInBackground(std::function<void()> body) {
  JoinBackground();
  SetState(kNcclInProgress);
  const std::lock_guard<std::mutex> lock(background_mutex_);
  background_ = std::thread([self = shared_from_this(), body = std::move(body)] { body(); });
}

void Communicator::JoinBackground() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(background_mutex_);
    thread.swap(background_);
  }
  if (thread.joinable()) thread.join();
}

NcclRedOp Communicator::AddReduction(MadeReduction reduction) {
  // Numbers of the process, so that those of another communicator are wrong here, as in NCCL.
  static std::atomic<int> last{4};
  const int number = ++last;
  const Lock lock(mutex_);
  reductions_[number] = std::move(reduction);
  return static_cast<NcclRedOp>(number);
}

bool Communicator::RemoveReduction(NcclRedOp op) {
  const Lock lock(mutex_);
  return reductions_.erase(op) > 0;
}

bool Communicator::FindReduction(NcclRedOp op, MadeReduction* found) {
  const Lock lock(mutex_);
  const auto reduction = reductions_.find(op);
  if (reduction == reductions_.end()) return false;
  *found = reduction->second;
  return true;
}

}  // namespace fake_nccl
