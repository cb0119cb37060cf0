#include "core/process_group.h"

#include <unistd.h>

#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/backend_registry.h"
#include "core/backend_spec.h"
#include "core/env.h"
#include "core/monitored_barrier.h"
#include "core/prefix_store.h"
#include "core/status.h"

namespace syncline {
namespace {

// Whether the group can go on after `error`: the argument was refused and no byte has moved.
bool IsHarmless(const absl::Status& error) {
  const ErrorKind kind = KindOf(error);
  return kind == ErrorKind::kArgument || kind == ErrorKind::kType ||
         kind == ErrorKind::kUnsupported;
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
  if (options.ranks.empty()) {
    options.ranks.resize(options.size);
    std::iota(options.ranks.begin(), options.ranks.end(), 0);
  }
  options.backend = absl::AsciiStrToLower(options.backend);
  if (!options.mismatch_check.has_value()) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool checks, DebugChecks());
    options.mismatch_check = checks ? MismatchCheck::kOn : MismatchCheck::kOff;
  }
  auto backends = Connect(options);
  if (!backends.ok()) {
    if (KindOf(backends.status()) == ErrorKind::kArgument) return backends.status();
    return Annotate(backends.status(),
                    absl::StrCat("rank ", options.rank, " could not join group '", options.name,
                                 "' (", options.backend, ", ", options.size, " ranks)"));
  }
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(options, *std::move(backends)));
}

absl::StatusOr<std::vector<ProcessGroup::Served>> ProcessGroup::Connect(const Options& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto of_device, ParseBackendSpec(options.backend));
  BackendConfig config;
  config.rank = options.rank;
  config.size = options.size;
  config.local_address = options.local_address;
  config.deadline = Deadline(options.connect_timeout.value_or(options.timeout));
  config.mismatch_check = *options.mismatch_check;
  std::map<std::string, std::set<DeviceType>> devices;
  for (const auto& [device, name] : of_device) devices[name].insert(device);
  std::vector<Served> backends;
  for (const auto& [name, served] : devices) {
    SYNCLINE_ASSIGN_OR_RETURN(BackendRegistry::Entry entry, BackendRegistry::Find(name));
    entry.capabilities.devices = served;
    config.store = std::make_shared<PrefixStore>(name, options.store);
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, entry.make(config));
    backends.push_back({name, std::move(entry.capabilities), std::move(backend)});
  }
  return backends;
}

ProcessGroup::~ProcessGroup() {
  if (!fork_guard_.InChild()) {
    Abort("the group was destroyed");
    return;
  }
  // Connections and threads are the parent's: nothing of them may be touched, so it all leaks.
  new std::vector<Served>(std::move(backends_));
  collectives_.release();
  for (auto& lane : p2p_) lane.second.release();
}

absl::Status ProcessGroup::status() const {
  SYNCLINE_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  return cause_;
}

void ProcessGroup::Close(absl::Duration timeout) {
  if (fork_guard_.InChild()) return;
  const absl::Status closed = BackendError(absl::StrCat("group '", name(), "' is closed"));
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = closed;  // Refuses new operations; those in flight go on.
    auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
    mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
  }
  AbortBackends(closed);
}

void ProcessGroup::Abort(absl::string_view reason) {
  if (fork_guard_.InChild()) return;
  Break(BackendError(
      absl::StrCat("group '", name(), "' was aborted by rank ", rank(), ": ", reason)));
}

absl::Status ProcessGroup::CheckProcess() const {
  if (!fork_guard_.InChild()) return absl::OkStatus();
  return BackendError(absl::StrCat("process ", getpid(), " was forked after group '", name(),
                                   "' was made and cannot use it: start processes before joining, ",
                                   "or by spawning instead of forking"));
}

absl::Status ProcessGroup::MonitoredBarrier(Timeout timeout) {
  Operation operation{OpKind::kBarrier};
  operation.alias = "monitored_barrier";
  operation.body = [this](const CallContext& context, Backend&) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(syncline::MonitoredBarrier(
        *options_.store, options_.rank, options_.size, context.sequence, context.deadline));
    return 0;
  };
  return Run(std::move(operation), timeout).status();
}

absl::StatusOr<int> ProcessGroup::Run(const absl::StatusOr<Operation>& given, Timeout timeout) {
  if (!given.ok()) return given.status();
  const Operation& operation = *given;
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline(timeout.value_or(options_.timeout));
  bool has_begun = false;
  int source = 0;
  absl::Status status = LaneOf(operation).Run(deadline, [&](uint64_t number) {
    has_begun = true;
    auto outcome = Execute(operation, {number, deadline, static_cast<int>(operation.tag)});
    if (outcome.ok()) source = *outcome;
    return outcome.status();
  });
  if (!has_begun) {
    // The other ranks will wait for it in vain: this is the end of the group.
    status = Finished(Annotate(
        status, absl::StrCat("rank ", rank(), " of group '", name(), "': ", operation.name())));
  }
  if (!status.ok()) return status;
  return source;
}

ProcessGroup::StartedWork ProcessGroup::Start(absl::StatusOr<Operation> given, Timeout timeout) {
  if (!given.ok()) return given.status();
  Operation& operation = *given;
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline(timeout.value_or(options_.timeout));
  std::shared_ptr<Work> work;
  absl::Status posted = LaneOf(operation).Post([&](uint64_t number) {
    work = std::make_shared<Work>(operation.ToString(number));
    const CallContext context = {number, deadline, static_cast<int>(operation.tag)};
    return [this, work, context, operation = std::move(operation)] {
      work->Start();
      const auto outcome = Execute(operation, context);
      const bool has_source = outcome.ok() && operation.kind == OpKind::kRecv;
      work->Finish(outcome.status(), has_source ? *outcome : -1);  // May destroy the group.
    };
  });
  if (!posted.ok()) return Finished(posted);
  return work;
}

absl::Status ProcessGroup::Admit(const Operation& operation, Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(Annotate(CheckProcess(), operation.name()));
  if (timeout.has_value() && *timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(*timeout)));
  }
  const Served& served = BackendOf(operation);
  absl::Status valid =
      Validate(operation, served.capabilities, served.name, options_.rank, options_.size);
  if (!valid.ok()) return Annotate(valid, operation.name());
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) {
    return Annotate(cause_, absl::StrCat(operation.name(), " was refused because group '", name(),
                                         "' can no longer be used"));
  }
  ++in_flight_;
  return absl::OkStatus();
}

absl::StatusOr<int> ProcessGroup::Execute(const Operation& operation, const CallContext& context) {
  auto outcome = Dispatch(operation, context, *BackendOf(operation).backend, options_.rank);
  if (outcome.ok()) {
    SYNCLINE_RETURN_IF_ERROR(Finished(absl::OkStatus()));
    return outcome;
  }
  return Finished(
      Annotate(outcome.status(), absl::StrCat("rank ", rank(), " of group '", name(),
                                              "': ", operation.ToString(context.sequence))));
}

absl::Status ProcessGroup::Finished(absl::Status status) {
  if (!status.ok() && !IsHarmless(status)) Break(status);
  absl::MutexLock lock(&mutex_);
  --in_flight_;
  return status;
}

const ProcessGroup::Served& ProcessGroup::BackendOf(const Operation& operation) const {
  for (const Served& served : backends_) {
    if (served.capabilities.devices.count(operation.device()) != 0) return served;
  }
  return backends_.front();  // Which refuses it.
}

Lane& ProcessGroup::LaneOf(const Operation& operation) {
  if (!IsP2p(operation.kind)) return *collectives_;
  absl::MutexLock lock(&lanes_mutex_);
  std::unique_ptr<Lane>& lane = p2p_[{operation.kind, operation.peer, operation.tag}];
  if (lane == nullptr) lane = std::make_unique<Lane>();
  return *lane;
}

void ProcessGroup::Break(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = cause;
  }
  AbortBackends(cause);
}

void ProcessGroup::AbortBackends(const absl::Status& cause) {
  for (const Served& served : backends_) served.backend->Abort(cause);  // The first cause stays.
}

}  // namespace syncline
