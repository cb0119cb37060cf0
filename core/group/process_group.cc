#include "syncline/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/env.h"
#include "core/base/liveness.h"
#include "core/base/thread.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "core/group/backend_spec.h"
#include "core/group/check_arguments.h"
#include "core/group/child_communicators.h"
#include "core/group/monitored_barrier.h"
#include "core/group/process_group_impl.h"
#include "syncline/backend_registry.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// Whether the group can go on after `error`: the argument was refused and no byte has moved.
bool IsHarmless(const absl::Status& error) {
  const ErrorKind kind = KindOf(error);
  return kind == ErrorKind::kArgument || kind == ErrorKind::kType ||
         kind == ErrorKind::kUnsupported;
}

// `error`, which ended `collective` of `rank`, made to begin with its name unless it is about this
// operation, so that its message names it. It may be about another one, which broke the group.
absl::Status Concerning(const Collective& collective, uint64_t sequence, int rank,
                        const absl::Status& error) {
  const ErrorOrigin::Operation own = collective.OperationAt(sequence, rank);
  ErrorOrigin origin = OriginOf(error).value_or(ErrorOrigin());
  std::vector<ErrorOrigin::Operation>& operations = origin.operations;
  const auto found = std::find(operations.begin(), operations.end(), own);
  const bool is_own = found != operations.end();
  const bool adds_arguments = is_own && origin.lacks_arguments;
  if (operations.empty()) operations.push_back(own);
  // This rank's call comes first, of those that disagree.
  if (is_own) std::rotate(operations.begin(), found, found + 1);
  origin.lacks_arguments = false;
  if (!is_own) return WithOrigin(Annotate(error, collective.ToString(sequence)), origin);
  absl::string_view text = error.message();
  if (!adds_arguments || !absl::ConsumePrefix(&text, collective.ShortName(sequence))) {
    return WithOrigin(error, origin);
  }
  return WithOrigin(ErrorOfKind(KindOf(error), absl::StrCat(collective.ToString(sequence), text)),
                    origin);
}

bool IsOnDevice(const Collective& collective) { return collective.device() != DeviceType::kCpu; }

// Of a group that could not be made. The calls by which backends connect are none of the user's.
absl::Status JoinError(const ProcessGroup::Options& options, const absl::Status& error) {
  ErrorOrigin origin;
  origin.ranks = RanksOf(error);
  return WithOrigin(
      Annotate(error, absl::StrCat("rank ", options.rank, " could not join group '", options.name,
                                   "' (", options.backend, ", ", options.size, " ranks)")),
      origin);
}

// Keeps a barrier from passing for a rank's part in a split: see CallContext::salt.
constexpr uint64_t kSplitSalt = 0x73706c6974;

PeerCheck CheckOfPeers(const ProcessGroup::Options& options) {
  std::vector<int> all(options.size);
  std::iota(all.begin(), all.end(), 0);
  return base::CheckRanksAlive(options.peers, options.rank, std::move(all));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(const Options& given) {
  Options options = given;
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return ArgumentError(absl::StrCat("rank ", options.rank, " is not in a group of ", options.size,
                                      ": ranks go from 0 to size - 1"));
  }
  if (options.store == nullptr) return ArgumentError("a group needs a store");
  if (options.timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  if (options.device_id.has_value() && options.device_id->type == DeviceType::kCpu) {
    return ArgumentError("device_id must be a CUDA device, such as cuda:0, not the CPU");
  }
  if (options.ranks.empty()) {
    options.ranks.resize(options.size);
    std::iota(options.ranks.begin(), options.ranks.end(), 0);
  }
  if (options.name.empty()) options.name = "default";
  options.backend = absl::AsciiStrToLower(options.backend);
  if (!options.mismatch_check.has_value()) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool checks, base::DebugChecks());
    options.mismatch_check = checks ? MismatchCheck::kOn : MismatchCheck::kOff;
  }
  auto backends = Impl::Connect(options);
  if (!backends.ok()) {
    if (KindOf(backends.status()) == ErrorKind::kArgument) return backends.status();
    return JoinError(options, backends.status());
  }
  options.communicator = nullptr;  // The backend has it.
  return std::shared_ptr<ProcessGroup>(
      new ProcessGroup(std::make_unique<Impl>(options, *std::move(backends))));
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ProcessGroup::~ProcessGroup() {
  // Connections and threads are the parent's: nothing of them may be touched, so it all leaks.
  if (impl_->InChild()) {
    impl_.release();
    return;
  }
  if (!device::StreamHandle::IsCallingBack()) return;
  // The group's other calls on devices may end on this thread, so another one waits for them.
  Impl* const impl = impl_.get();
  auto ends = base::StartThread("the end of a group", [impl] { delete impl; });
  if (!ends.ok()) return;
  impl_.release();
  ends->detach();
}

int ProcessGroup::rank() const { return impl_->options().rank; }
int ProcessGroup::size() const { return impl_->options().size; }
const std::string& ProcessGroup::name() const { return impl_->options().name; }
const std::string& ProcessGroup::backend() const { return impl_->options().backend; }
absl::Duration ProcessGroup::timeout() const { return impl_->timeout(); }
absl::Status ProcessGroup::SetTimeout(absl::Duration timeout) { return impl_->SetTimeout(timeout); }
const std::vector<int>& ProcessGroup::ranks() const { return impl_->options().ranks; }
const ProcessGroup::Options& ProcessGroup::options() const { return impl_->options(); }

absl::StatusOr<int> ProcessGroup::Run(const Collective& collective, Timeout timeout) {
  return impl_->Run(collective, timeout);
}

ProcessGroup::StartedWork ProcessGroup::Start(Collective collective, Timeout timeout) {
  return impl_->Start(std::move(collective), timeout);
}

absl::Status ProcessGroup::MonitoredBarrier(Timeout timeout) {
  return impl_->MonitoredBarrier(timeout);
}

absl::Status ProcessGroup::status() const { return impl_->status(); }

void ProcessGroup::Close(absl::Duration timeout) { impl_->Close(timeout); }

void ProcessGroup::Abort(absl::string_view reason) { impl_->Abort(reason); }

bool group::ChildCommunicators::CanMake(const ProcessGroup& parent) {
  return parent.impl_->CanSplit();
}

absl::StatusOr<std::shared_ptr<ChildCommunicator>> group::ChildCommunicators::Make(
    ProcessGroup& parent, const SplitPlace& place, const Deadline& deadline) {
  auto made = parent.impl_->Split(place, deadline);
  if (made.ok() || IsInterrupted(made.status()) || deadline.Expired()) return made;
  // The parent has failed, of which all its ranks learn. The new group needs nothing of it.
  Log(LogLevel::kWarning,
      absl::StrCat("a new group gets a communicator of its own: ", made.status().message()));
  return std::shared_ptr<ChildCommunicator>();
}

absl::Status ProcessGroup::CheckProcess() const { return impl_->CheckProcess(); }

absl::StatusOr<std::vector<ProcessGroup::Impl::Served>> ProcessGroup::Impl::Connect(
    const Options& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto of_device, group::ParseBackendSpec(options.backend));
  BackendConfig config;
  config.rank = options.rank;
  config.size = options.size;
  config.local_address = options.local_address;
  config.more_addresses = options.more_addresses;
  config.deadline = Deadline(options.connect_timeout.value_or(options.timeout));
  config.mismatch_check = *options.mismatch_check;
  config.check_peers = CheckOfPeers(options);
  config.device = options.device_id;
  config.communicator = options.communicator;
  std::map<std::string, EnumSet<DeviceType>> devices;
  for (const auto& [device, name] : of_device) devices[name].insert(device);
  std::vector<Served> backends;
  for (const auto& [name, served] : devices) {
    SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(name));
    config.store = std::make_shared<PrefixStore>(name, options.store);
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, entry.make(config));
    Served made = {name, entry.capabilities, served, std::move(backend), nullptr, false};
    made.capabilities.devices = served;
    made.capabilities.devices.erase(DeviceType::kCuda);
    if (served.count(DeviceType::kCuda) != 0) {
      config.store = std::make_shared<PrefixStore>(absl::StrCat(name, ".cuda"), options.store);
      SYNCLINE_ASSIGN_OR_RETURN(made.on_devices,
                                group::MakeDeviceBackend(entry, made.backend, config));
      made.has_own_queues = entry.capabilities.devices.count(DeviceType::kCuda) == 0 &&
                            made.on_devices->is_stream_ordered();
    }
    backends.push_back(std::move(made));
  }
  return backends;
}

bool ProcessGroup::Impl::CanSplit() const {
  const Served& served = *backend_of_[static_cast<size_t>(DeviceType::kCuda)];
  return served.on_devices != nullptr && served.on_devices->CanSplit();
}

absl::StatusOr<std::shared_ptr<ChildCommunicator>> ProcessGroup::Impl::Split(
    const SplitPlace& place, const Deadline& deadline) {
  constexpr size_t kCuda = static_cast<size_t>(DeviceType::kCuda);
  Collective collective = Collective::Barrier();  // It has the ranks meet, and moves nothing.
  collective.user_name = "split";
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(collective, {}));
  std::shared_ptr<ChildCommunicator> made;
  bool has_begun = false;
  const auto split = [&](uint64_t sequence) -> absl::Status {
    has_begun = true;
    CallContext context = ContextOf(sequence, deadline);
    context.collective = &collective;
    context.salt = kSplitSalt;
    auto split_off = backend_of_[kCuda]->on_devices->Split(place, context);
    if (!split_off.ok()) return Failed(collective, sequence, split_off.status());
    made = *std::move(split_off);
    return absl::OkStatus();
  };
  absl::Status ended;
  const auto end = [&](const absl::Status& interruption) {
    ended = NotRun(collective, interruption);
  };
  const absl::Status status = queues_of_[kCuda]->collectives->Run(deadline, split, end);
  if (!ended.ok()) return ended;
  if (!has_begun) return NotRun(collective, status);
  SYNCLINE_RETURN_IF_ERROR(status);
  return made;
}

ProcessGroup::Impl::Impl(const Options& options, std::vector<Served> backends)
    : options_(options), backends_(std::move(backends)) {
  // A device that no backend serves has the first one, which refuses its tensors.
  backend_of_.fill(&backends_[0]);
  for (const Served& served : backends_) {
    Queues* queues = AddQueues();
    if (&served == &backends_[0]) queues_of_.fill(queues);
    for (DeviceType device : served.devices) {
      backend_of_[static_cast<size_t>(device)] = &served;
      queues_of_[static_cast<size_t>(device)] = queues;
    }
    if (served.has_own_queues) queues_of_[static_cast<size_t>(DeviceType::kCuda)] = AddQueues();
  }
  ends_with_calls_ = !backend_of_[static_cast<size_t>(DeviceType::kCpu)]->backend->MayKeepTensors();
}

ProcessGroup::Impl::Queues* ProcessGroup::Impl::AddQueues() {
  return queues_.emplace_back(std::make_unique<Queues>(options_.size)).get();
}

ProcessGroup::Impl::~Impl() {
  Abort("the group was destroyed");
  // What the queues' threads still run uses the members below, and may leave a call in flight.
  queues_.clear();
  absl::MutexLock lock(&mutex_);
  auto none_in_flight = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
  // Bounded by the backends, which complete what is pending when they are aborted.
  mutex_.Await(absl::Condition(&none_in_flight));
}

absl::Status ProcessGroup::Impl::status() const {
  SYNCLINE_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  return cause_;
}

absl::Status ProcessGroup::Impl::SetTimeout(absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(timeout)));
  }
  // What is shorter than a nanosecond is one, not 0; an infinite one is Deadline::kInfiniteNs.
  timeout_ns_.store(absl::ToInt64Nanoseconds(absl::Ceil(timeout, absl::Nanoseconds(1))));
  return absl::OkStatus();
}

void ProcessGroup::Impl::Close(absl::Duration timeout) {
  if (fork_guard_.InChild()) return;
  const absl::Status closed = BackendError(absl::StrCat("group '", options_.name, "' is closed"));
  if (!Poison(closed)) return;
  const Deadline deadline(timeout);
  AwaitOperations(deadline);
  LeaveBackends(closed, deadline);
}

void ProcessGroup::Impl::Abort(absl::string_view reason) {
  if (fork_guard_.InChild()) return;
  const absl::Status aborted = BackendError(absl::StrCat(
      "group '", options_.name, "' was aborted by rank ", options_.rank, ": ", reason));
  Fail(WithRanks(aborted, {options_.rank}));
}

absl::Status ProcessGroup::Impl::CheckProcess() const {
  if (!fork_guard_.InChild()) return absl::OkStatus();
  return BackendError(absl::StrCat("process ", getpid(), " was forked after group '", options_.name,
                                   "' was made and cannot use it: start processes before joining, ",
                                   "or by spawning instead of forking"));
}

template <typename RunBody>
auto ProcessGroup::Impl::Execute(const Collective& collective, const CallContext& context,
                                 const RunBody& body) -> decltype(body(context)) {
  try {
    auto outcome = body(context);
    if (ABSL_PREDICT_TRUE(outcome.ok())) return outcome;
    return Failed(collective, context.sequence, outcome.status());
  } catch (const std::bad_alloc&) {
    return Failed(collective, context.sequence,
                  BackendError("out of memory: no memory for the buffers of the operation"));
  } catch (const std::exception& thrown) {
    return Failed(collective, context.sequence,
                  BackendError(absl::StrCat("unexpected error: ", thrown.what())));
  }
}

template <typename RunBody>
absl::StatusOr<int> ProcessGroup::Impl::RunOnHost(const Collective& collective,
                                                  const Timeout& timeout, const RunBody& body) {
  SYNCLINE_DCHECK(!IsOnDevice(collective));
  if (ABSL_PREDICT_FALSE(!IsPlainlyUsable(*backend_of_[kCpu], collective, timeout))) {
    SYNCLINE_RETURN_IF_ERROR(CheckUsableInFull(collective, timeout));
  }
  CallContext context{0,
                      ABSL_PREDICT_FALSE(timeout.has_value())
                          ? Deadline::FromFirstWait(*timeout)
                          : Deadline::FromFirstWait(timeout_ns_.load(std::memory_order_relaxed))};
  context.mismatch_check = *options_.mismatch_check;
  context.collective = &collective;
  std::shared_ptr<group::OperationQueue> keep;
  group::OperationQueue& queue = QueueIn(*queues_of_[kCpu], collective, keep);
  if (ABSL_PREDICT_FALSE(!queue.TryEnter(context.sequence))) {
    return RunInTurn(collective, context, queue, body);
  }
  // Whatever happens, the queue is left: otherwise it is never destroyed.
  const absl::Cleanup leave = [&queue] { queue.Leave(); };
  return Execute(collective, context, body);
}

template <typename RunBody>
absl::StatusOr<int> ProcessGroup::Impl::RunInTurn(const Collective& collective,
                                                  CallContext& context,
                                                  group::OperationQueue& queue,
                                                  const RunBody& body) {
  bool has_begun = false;
  int outcome = 0;
  const auto run = [&](uint64_t sequence) -> absl::Status {
    has_begun = true;
    context.sequence = sequence;
    const absl::StatusOr<int> source = Execute(collective, context, body);
    if (!source.ok()) return source.status();
    outcome = *source;
    return absl::OkStatus();
  };
  absl::Status ended;
  const auto end = [&](const absl::Status& interruption) {
    ended = NotRun(collective, interruption);
  };
  const absl::Status status = queue.Run(context.deadline, run, end);
  if (!ended.ok()) return ended;
  if (status.ok()) return outcome;
  return has_begun ? status : NotRun(collective, status);
}

absl::StatusOr<int> ProcessGroup::Impl::RunOnDevice(const Collective& collective,
                                                    const Timeout& timeout, Body body) {
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(collective, timeout));
  SYNCLINE_ASSIGN_OR_RETURN(const std::optional<CallerStream> caller, RecordCaller(collective));
  const Deadline deadline = Deadline::FromFirstWait(timeout.value_or(this->timeout()));
  bool has_begun = false;
  int source = 0;
  std::shared_ptr<Completion::Handle> enqueued;  // A call on streams,
  uint64_t enqueued_sequence = 0;                // with its number.
  const auto run = [&](uint64_t sequence) -> absl::Status {
    has_begun = true;
    CallContext context = ContextOf(sequence, deadline);
    context.collective = &collective;
    if (caller.has_value()) context.caller = &*caller;
    const absl::StatusOr<Completion> completion = Execute(collective, context, body);
    if (!completion.ok()) return completion.status();
    // Who has sent is known when the call has ended: then the host waits.
    const bool asks_who = collective.kind == OpKind::kRecv && collective.peer == kAnySource;
    if (completion->handle() != nullptr && caller.has_value() && !asks_who &&
        completion->handle()->is_stream_ordered()) {
      EndLater(*completion, collective, context.sequence);
      if (collective.kind == OpKind::kRecv) source = collective.peer;
      enqueued = completion->handle();
      enqueued_sequence = context.sequence;
      return absl::OkStatus();
    }
    const absl::StatusOr<int> outcome = WaitFor(*completion, collective, context.deadline);
    if (!outcome.ok()) return Failed(collective, context.sequence, outcome.status());
    source = *outcome;
    return absl::OkStatus();
  };
  absl::Status ended;
  const auto end = [&](const absl::Status& interruption) {
    ended = NotRun(collective, interruption);
  };
  std::shared_ptr<group::OperationQueue> keep;
  const absl::Status status = QueueOf(collective, keep).Run(deadline, run, end);
  if (!ended.ok()) return ended;
  if (!status.ok()) return has_begun ? status : NotRun(collective, status);
  if (enqueued != nullptr) {
    // The caller's stream waits, not the host. On this thread, whose current streams are meant:
    // that of the queue may have enqueued the call.
    const absl::Status waits = enqueued->EnqueueWait(caller->stream);
    if (!waits.ok()) return Failed(collective, enqueued_sequence, waits);
  }
  return source;
}

absl::StatusOr<int> ProcessGroup::Impl::Run(const Collective& collective, const Timeout& timeout) {
  if (ABSL_PREDICT_FALSE(IsOnDevice(collective))) {
    const Served& served = BackendOf(collective);
    return RunOnDevice(collective, timeout, [&](const CallContext& context) {
      return served.on_devices->Run(absl::MakeConstSpan(&collective, 1), context);
    });
  }
  return RunOnHost(collective, timeout, [&](const CallContext& context) {
    return backend_of_[kCpu]->backend->RunAndWait(collective, context);
  });
}

absl::Status ProcessGroup::Impl::MonitoredBarrier(const Timeout& timeout) {
  Collective collective = Collective::Barrier();
  collective.user_name = "monitored_barrier";
  const auto body = [this](const CallContext& context) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(group::MonitoredBarrier(
        *options_.store, options_.rank, options_.size, context.sequence, context.deadline,
        [this] { return abort_cause(); }, CheckOfPeers(options_)));
    return 0;
  };
  return RunOnHost(collective, timeout, body).status();
}

absl::Status ProcessGroup::Impl::Run(const absl::StatusOr<group::Plan>& plan,
                                     const Timeout& timeout) {
  if (!plan.ok()) return plan.status();
  const Served& served = BackendOf(plan->collective);
  if (IsOnDevice(plan->collective)) {
    const auto body = [&](const CallContext& context) {
      return served.on_devices->RunPlan(*plan, context);
    };
    return RunOnDevice(plan->collective, timeout, body).status();
  }
  const auto body = [&](const CallContext& context) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(group::RunPlan(*plan, context, *served.backend));
    return 0;
  };
  return RunOnHost(plan->collective, timeout, body).status();
}

ProcessGroup::StartedWork ProcessGroup::Impl::Start(Collective collective, const Timeout& timeout) {
  collective.Own();
  return StartInTurn(collective, timeout, [this](const CallContext& context) {
    const Collective& owned = *context.collective;
    const Served& served = BackendOf(owned);
    if (IsOnDevice(owned)) {
      return served.on_devices->Run(absl::MakeConstSpan(&owned, 1), context);
    }
    return served.backend->Run(absl::MakeConstSpan(&owned, 1), context);
  });
}

ProcessGroup::StartedWork ProcessGroup::Impl::Start(absl::StatusOr<group::Plan> plan,
                                                    const Timeout& timeout) {
  if (!plan.ok()) return plan.status();
  const auto shared = std::make_shared<const group::Plan>(*std::move(plan));
  const auto body = [this, shared](const CallContext& context) -> absl::StatusOr<Completion> {
    const Served& served = BackendOf(shared->collective);
    if (IsOnDevice(shared->collective)) return served.on_devices->RunPlan(*shared, context);
    SYNCLINE_RETURN_IF_ERROR(group::RunPlan(*shared, context, *served.backend));
    return Completion();
  };
  return StartInTurn(shared->collective, timeout, body);
}

ProcessGroup::StartedWork ProcessGroup::Impl::StartInTurn(const Collective& collective,
                                                          const Timeout& timeout, OwnedBody body) {
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(collective, timeout));
  std::shared_ptr<const CallerStream> caller;
  if (IsOnDevice(collective)) {
    SYNCLINE_ASSIGN_OR_RETURN(std::optional<CallerStream> recorded, RecordCaller(collective));
    if (recorded.has_value() && BackendOf(collective).on_devices->is_stream_ordered()) {
      return StartOnStreams(collective, timeout, *recorded, body);
    }
    if (recorded.has_value()) caller = std::make_shared<const CallerStream>(*std::move(recorded));
  }
  const Deadline deadline(timeout.value_or(this->timeout()));
  std::shared_ptr<Work> work;
  std::shared_ptr<group::OperationQueue> keep;
  absl::Status posted = QueueOf(collective, keep).Post([&](uint64_t sequence) {
    work = std::make_shared<Work>(collective.ToString(sequence));
    return [this, work, context = ContextOf(sequence, deadline), collective, caller,
            body = std::move(body)]() mutable {
      context.collective = &collective;  // Which holds the tensors during the call.
      context.caller = caller.get();
      work->Start();
      const auto completion = Execute(collective, context, body);
      if (completion.ok() && completion->handle() != nullptr) {
        FinishLater(*completion, collective, context.sequence, work);
        return;
      }
      const bool has_source = completion.ok() && collective.kind == OpKind::kRecv;
      work->Finish(completion.status(), has_source ? completion->source() : -1);  // May destroy us.
    };
  });
  if (!posted.ok()) return Concluded(posted);
  return work;
}

ProcessGroup::StartedWork ProcessGroup::Impl::StartOnStreams(const Collective& collective,
                                                             const Timeout& timeout,
                                                             const CallerStream& caller,
                                                             Body body) {
  const Deadline deadline(timeout.value_or(this->timeout()));
  std::shared_ptr<Work> work;
  const auto enqueue = [&](uint64_t sequence) -> absl::Status {
    work = std::make_shared<Work>(collective.ToString(sequence));
    CallContext context = ContextOf(sequence, deadline);
    context.collective = &collective;
    context.caller = &caller;
    work->Start();
    const auto completion = Execute(collective, context, body);
    if (completion.ok() && completion->handle() != nullptr) {
      FinishLater(*completion, collective, sequence, work);
    } else {  // It has failed, or a graph has it.
      const bool has_source = completion.ok() && collective.kind == OpKind::kRecv;
      work->Finish(completion.status(), has_source ? completion->source() : -1);
    }
    return absl::OkStatus();
  };
  std::shared_ptr<group::OperationQueue> keep;
  const absl::Status ran = QueueOf(collective, keep).Run(deadline, enqueue);
  if (work == nullptr) return NotRun(collective, ran);
  return work;
}

absl::StatusOr<std::optional<CallerStream>> ProcessGroup::Impl::RecordCaller(
    const Collective& collective) const {
  if (!BackendOf(collective).on_devices->needs_caller()) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  const Device device = collective.tensor_device();
  CallerStream caller = {CurrentStream(device), nullptr, {}};
  SYNCLINE_ASSIGN_OR_RETURN(caller.ready, runtime->Record(caller.stream));
  if (collective.user_tensors == nullptr) return caller;
  // Only operations on lists have tensors of several devices.
  std::set<int> others;
  for (const Tensor& tensor : *collective.user_tensors) others.insert(tensor.device().index);
  others.erase(device.index);
  for (const int index : others) {
    SYNCLINE_ASSIGN_OR_RETURN(auto ready, runtime->Record(CurrentStream({device.type, index})));
    caller.others.push_back(std::move(ready));
  }
  return caller;
}

void ProcessGroup::Impl::EndLater(const Completion& completion, const Collective& collective,
                                  uint64_t sequence) {
  Collective held = collective;
  held.Own();
  // Made before the call counts as in flight: there may be no memory for it.
  std::function<void(const absl::StatusOr<int>&)> end =
      [this, sequence, held = std::move(held)](const absl::StatusOr<int>& outcome) {
        // Nobody waits for this outcome: later calls return it.
        if (!outcome.ok()) Failed(held, sequence, outcome.status()).IgnoreError();
        absl::MutexLock lock(&mutex_);
        --in_flight_;  // From here on the group may be destroyed.
      };
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  completion.handle()->OnDone(std::move(end));
}

void ProcessGroup::Impl::FinishLater(const Completion& completion, const Collective& collective,
                                     uint64_t sequence, const std::shared_ptr<Work>& work) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  if (completion.handle()->is_stream_ordered()) {
    work->Enqueued(collective.tensor_device(), completion.handle());
  }
  // Holds the tensors until the call has ended.
  completion.handle()->OnDone(
      [this, work, sequence, collective](const absl::StatusOr<int>& outcome) {
        const absl::Status status =
            outcome.ok() ? absl::OkStatus() : Failed(collective, sequence, outcome.status());
        const bool has_source = outcome.ok() && collective.kind == OpKind::kRecv;
        work->Finish(status, has_source ? *outcome : -1, [this] {
          absl::MutexLock lock(&mutex_);
          --in_flight_;  // From here on the group may be destroyed: by a callback, too.
        });
      });
}

absl::Status ProcessGroup::Impl::CheckUsableInFull(const Collective& collective,
                                                   const Timeout& timeout) const {
  if (fork_guard_.InChild()) return Annotate(CheckProcess(), collective.name());
  if (timeout.has_value() && *timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(*timeout)));
  }
  const Served& served = BackendOf(collective);
  const bool is_on_device = IsOnDevice(collective) && served.on_devices != nullptr;
  const absl::Status valid = group::CheckArguments(
      collective, is_on_device ? served.on_devices->capabilities() : served.capabilities,
      served.name, options_.rank, options_.size);
  if (!valid.ok()) return Annotate(valid, collective.name());
  if (is_usable_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return Annotate(cause_,
                  absl::StrCat(collective.name(), " was refused because group '", options_.name,
                               "' can no longer be used (make a new one, or shrink it to ",
                               "the ranks that are left)"));
}

CallContext ProcessGroup::Impl::ContextOf(uint64_t sequence, const Deadline& deadline) const {
  CallContext context;
  context.sequence = sequence;
  context.deadline = deadline;
  context.mismatch_check = *options_.mismatch_check;
  return context;
}

absl::Status ProcessGroup::Impl::Failed(const Collective& collective, uint64_t sequence,
                                        const absl::Status& error) {
  return Concluded(Annotate(Concerning(collective, sequence, options_.rank, error), Speaker()));
}

// The other ranks will wait for it in vain: this is the end of the group.
absl::Status ProcessGroup::Impl::NotRun(const Collective& collective, const absl::Status& error) {
  return Concluded(Annotate(error, Speaker(collective.name())));
}

std::string ProcessGroup::Impl::Speaker(absl::string_view operation) const {
  return absl::StrCat("rank ", options_.rank, " of group '", options_.name, "'",
                      operation.empty() ? "" : ": ", operation);
}

absl::Status ProcessGroup::Impl::Concluded(absl::Status status) {
  if (status.ok() || IsHarmless(status)) return status;
  if (!IsInterrupted(status)) {
    Fail(status);
    return status;
  }
  // Later calls, which nobody has interrupted, fail like those of any other broken group, and blame
  // this rank as the other ranks do.
  Fail(WithRanks(WithOriginOf(BackendError(status.message()), status), {options_.rank}));
  return status;
}

group::OperationQueue& ProcessGroup::Impl::QueueOfMessage(
    Queues& queues, const Collective& collective, std::shared_ptr<group::OperationQueue>& keep) {
  std::vector<std::shared_ptr<group::OperationQueue>>
      dropped;  // Destroyed unlocked: their threads end.
  absl::MutexLock lock(&queues.mutex);
  std::shared_ptr<group::OperationQueue>& queue =
      queues.p2p[{collective.kind, collective.peer, collective.tag}];
  if (queue == nullptr) {
    auto& counter = queues.p2p_counters[{collective.kind, collective.peer}];
    if (counter == nullptr) counter = std::make_shared<group::OperationQueue::SequenceCounter>(0);
    queue = std::make_shared<group::OperationQueue>(counter);
  }
  keep = queue;
  std::atomic<group::OperationQueue*>* const untagged = UntaggedQueueOf(queues, collective);
  if (untagged != nullptr) untagged->store(queue.get(), std::memory_order_release);
  if (queues.p2p.size() > queues.to_keep) DropIdleQueues(queues, dropped);
  return *keep;
}

void ProcessGroup::Impl::DropIdleQueues(
    Queues& queues, std::vector<std::shared_ptr<group::OperationQueue>>& dropped) {
  for (auto it = queues.p2p.begin(); it != queues.p2p.end();) {
    // Whoever else uses it got it under the lock, unless it has no tag.
    const bool is_untagged = std::get<2>(it->first) == 0;
    if (is_untagged || it->second.use_count() > 1 || !it->second->IsIdle()) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second));
    it = queues.p2p.erase(it);
  }
  queues.to_keep = std::max(kFewQueues, 2 * queues.p2p.size());
}

void ProcessGroup::Impl::Fail(const absl::Status& cause) {
  Poison(cause);
  AbortBackends(cause);
}

bool ProcessGroup::Impl::Poison(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) return false;
  cause_ = cause;
  is_usable_.store(false, std::memory_order_release);
  return true;
}

void ProcessGroup::Impl::AwaitOperations(const Deadline& deadline) {
  for (const auto& queues : queues_) {
    std::vector<std::shared_ptr<group::OperationQueue>> messages;
    {
      absl::MutexLock lock(&queues->mutex);
      for (const auto& queue : queues->p2p) messages.push_back(queue.second);
    }
    queues->collectives->AwaitIdle(deadline);
    for (const auto& queue : messages) queue->AwaitIdle(deadline);
  }
  absl::MutexLock lock(&mutex_);
  auto none_in_flight = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
  deadline.Await(mutex_, absl::Condition(&none_in_flight));
}

absl::Status ProcessGroup::Impl::abort_cause() const {
  absl::MutexLock lock(&mutex_);
  return abort_cause_;
}

void ProcessGroup::Impl::SetAbortCause(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (abort_cause_.ok()) abort_cause_ = cause;
}

void ProcessGroup::Impl::LeaveBackends(const absl::Status& cause, const Deadline& deadline) {
  SetAbortCause(cause);
  for (const Served& served : backends_) {
    served.backend->Leave(cause, deadline);
    if (served.on_devices != nullptr) served.on_devices->Leave(cause, deadline);
  }
}

void ProcessGroup::Impl::AbortBackends(const absl::Status& cause) {
  SetAbortCause(cause);
  for (const Served& served : backends_) {
    served.backend->Abort(cause);  // The first cause stays.
    if (served.on_devices != nullptr) served.on_devices->Abort(cause);
  }
}

}  // namespace syncline
