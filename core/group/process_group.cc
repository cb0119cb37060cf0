#include "core/group/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/base/env.h"
#include "core/base/interrupt.h"
#include "core/base/liveness.h"
#include "core/base/status.h"
#include "core/group/backend_registry.h"
#include "core/group/backend_spec.h"
#include "core/group/monitored_barrier.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

// Whether the group can go on after `error`: the argument was refused and no byte has moved.
bool IsHarmless(const absl::Status& error) {
  const ErrorKind kind = KindOf(error);
  return kind == ErrorKind::kArgument || kind == ErrorKind::kType ||
         kind == ErrorKind::kUnsupported;
}

// Whether `name`, a number at its end, is at `at` in `text`, and the number ends there.
bool IsAt(absl::string_view text, size_t at, absl::string_view name) {
  if (at == text.npos || !absl::StartsWith(text.substr(at), name)) return false;
  const size_t end = at + name.size();
  return end == text.size() || !absl::ascii_isdigit(static_cast<unsigned char>(text[end]));
}

absl::Status Reworded(const absl::Status& error, absl::string_view message) {
  absl::Status reworded(error.code(), message);
  error.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { reworded.SetPayload(url, payload); });
  return reworded;
}

CallContext ContextOf(const Operation& operation, uint64_t number, const Deadline& deadline) {
  return {number, deadline, static_cast<int>(operation.tag), {operation.alias}};
}

// `error`, made to begin with the operation that met it unless it tells of it already. Backends
// name operations in the same words, for an error may be about another one than that which returns
// it.
absl::Status Concerning(const Operation& operation, uint64_t sequence, const absl::Status& error) {
  const std::string name = operation.ShortName(sequence);
  const absl::string_view text = error.message();
  constexpr absl::string_view kCalled = " called ";
  if (absl::StartsWith(text, absl::StrCat(name, ":"))) {
    return Reworded(error, absl::StrCat(operation.ToString(sequence), text.substr(name.size())));
  }
  const size_t called = text.find(absl::StrCat(kCalled, name));
  if (IsAt(text, 0, name) || (called != text.npos && IsAt(text, called + kCalled.size(), name))) {
    return error;
  }
  return Annotate(error, operation.ToString(sequence));
}

PeerCheck CheckOfPeers(const ProcessGroup::Options& options) {
  std::vector<int64_t> all(options.size);
  std::iota(all.begin(), all.end(), 0);
  return CheckRanksAlive(options.peers, options.rank, std::move(all));
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
  if (options.name.empty()) options.name = "default";
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
  config.check_peers = CheckOfPeers(options);
  std::map<std::string, EnumSet<DeviceType>> devices;
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
  new auto(std::move(p2p_));
}

absl::Status ProcessGroup::status() const {
  SYNCLINE_RETURN_IF_ERROR(CheckProcess());
  absl::MutexLock lock(&mutex_);
  return cause_;
}

void ProcessGroup::Close(absl::Duration timeout) {
  if (fork_guard_.InChild()) return;
  const absl::Status closed = BackendError(absl::StrCat("group '", name(), "' is closed"));
  if (!Refuse(closed)) return;
  AwaitOperations(Deadline(timeout));
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
  Operation operation(OpKind::kBarrier);
  operation.alias = "monitored_barrier";
  operation.body = [this](const CallContext& context, Backend&) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(syncline::MonitoredBarrier(
        *options_.store, options_.rank, options_.size, context.sequence, context.deadline,
        [this] { return abort_cause(); }, CheckOfPeers(options_)));
    return 0;
  };
  return Run(std::move(operation), timeout).status();
}

absl::StatusOr<int> ProcessGroup::Run(const absl::StatusOr<Operation>& operation, Timeout timeout) {
  if (!operation.ok()) return operation.status();
  return Run(*operation, timeout);
}

absl::StatusOr<int> ProcessGroup::Run(const Operation& operation, Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline = Deadline::FromFirstWait(timeout.value_or(options_.timeout));
  bool has_begun = false;
  int source = 0;
  absl::Status ended;
  const auto run = [&](uint64_t number) {
    has_begun = true;
    auto outcome = Execute(operation, ContextOf(operation, number, deadline));
    if (outcome.ok()) source = *outcome;
    return outcome.status();
  };
  const auto end = [&](const absl::Status& interruption) {
    ended = Finished(Annotate(interruption, Speaker(operation.name())));
  };
  absl::Status status = LaneOf(operation)->Run(deadline, run, end);
  if (!ended.ok()) return ended;
  if (!has_begun) {
    // The other ranks will wait for it in vain: this is the end of the group.
    status = Finished(Annotate(status, Speaker(operation.name())));
  }
  if (!status.ok()) return status;
  return source;
}

ProcessGroup::StartedWork ProcessGroup::Start(absl::StatusOr<Operation> given, Timeout timeout) {
  if (!given.ok()) return given.status();
  Operation& operation = *given;
  operation.Hold();
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline(timeout.value_or(options_.timeout));
  std::shared_ptr<Work> work;
  absl::Status posted = LaneOf(operation)->Post([&](uint64_t number) {
    work = std::make_shared<Work>(operation.ToString(number));
    const CallContext context = ContextOf(operation, number, deadline);
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
  if (fork_guard_.InChild()) return Annotate(CheckProcess(), operation.name());
  if (timeout.has_value() && *timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(*timeout)));
  }
  const Served& served = BackendOf(operation);
  absl::Status valid =
      Validate(operation, served.capabilities, served.name, options_.rank, options_.size);
  if (!valid.ok()) return Annotate(valid, operation.name());
  if (is_usable_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return Annotate(cause_, absl::StrCat(operation.name(), " was refused because group '", name(),
                                       "' can no longer be used (make a new one, or shrink it to ",
                                       "the ranks that are left)"));
}

absl::StatusOr<int> ProcessGroup::Execute(const Operation& operation, const CallContext& context) {
  absl::StatusOr<int> outcome = 0;
  try {
    outcome = Perform(operation, context);
  } catch (const std::bad_alloc&) {
    outcome = BackendError("out of memory: no memory for the buffers of the operation");
  } catch (const std::exception& error) {
    outcome = BackendError(absl::StrCat("unexpected error: ", error.what()));
  }
  if (outcome.ok()) return outcome;
  return Finished(Annotate(Concerning(operation, context.sequence, outcome.status()), Speaker()));
}

std::string ProcessGroup::Speaker(absl::string_view operation) const {
  return absl::StrCat("rank ", rank(), " of group '", name(), "'", operation.empty() ? "" : ": ",
                      operation);
}

absl::StatusOr<int> ProcessGroup::Perform(const Operation& operation, const CallContext& context) {
  Backend& backend = *BackendOf(operation).backend;
  if (operation.listed == nullptr || options_.mismatch_check == MismatchCheck::kOff) {
    return Dispatch(operation, context, backend, options_.rank);
  }
  const std::string tensors = operation.ListedToString();
  CallContext with_form = context;
  with_form.form = {operation.alias, tensors, operation.FormHash()};
  return Dispatch(operation, with_form, backend, options_.rank);
}

absl::Status ProcessGroup::Finished(absl::Status status) {
  if (status.ok() || IsHarmless(status)) return status;
  // Later calls, which nobody has interrupted, fail like those of any other broken group.
  Break(IsInterrupted(status) ? BackendError(status.message()) : status);
  return status;
}

const ProcessGroup::Served& ProcessGroup::BackendOf(const Operation& operation) const {
  if (backends_.size() == 1) return backends_.front();
  for (const Served& served : backends_) {
    if (served.capabilities.devices.count(operation.device()) != 0) return served;
  }
  return backends_.front();  // Which refuses it.
}

std::shared_ptr<Lane> ProcessGroup::LaneOf(const Operation& operation) {
  if (!IsP2p(operation.kind)) return {std::shared_ptr<void>(), collectives_.get()};  // Not owned.
  std::vector<std::shared_ptr<Lane>> dropped;  // Destroyed without the lock: their threads end.
  absl::MutexLock lock(&lanes_mutex_);
  std::shared_ptr<Lane>& lane = p2p_[{operation.kind, operation.peer, operation.tag}];
  if (lane != nullptr) return lane;
  auto& numbers = p2p_numbers_[{operation.kind, operation.peer}];
  if (numbers == nullptr) numbers = std::make_shared<Lane::Numbers>(0);
  lane = std::make_shared<Lane>(numbers);
  const std::shared_ptr<Lane> made = lane;
  if (p2p_.size() > lanes_to_keep_) DropIdleLanes(dropped);
  return made;
}

void ProcessGroup::DropIdleLanes(std::vector<std::shared_ptr<Lane>>& dropped) {
  for (auto it = p2p_.begin(); it != p2p_.end();) {
    // Who else uses it got it under the lock.
    if (it->second.use_count() > 1 || !it->second->IsIdle()) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second));
    it = p2p_.erase(it);
  }
  lanes_to_keep_ = std::max(kFewLanes, 2 * p2p_.size());
}

void ProcessGroup::Break(const absl::Status& cause) {
  Refuse(cause);
  AbortBackends(cause);
}

bool ProcessGroup::Refuse(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) return false;
  cause_ = cause;
  is_usable_.store(false, std::memory_order_release);
  return true;
}

void ProcessGroup::AwaitOperations(const Deadline& deadline) {
  std::vector<std::shared_ptr<Lane>> messages;
  {
    absl::MutexLock lock(&lanes_mutex_);
    for (const auto& lane : p2p_) messages.push_back(lane.second);
  }
  collectives_->AwaitIdle(deadline);
  for (const auto& lane : messages) lane->AwaitIdle(deadline);
}

absl::Status ProcessGroup::abort_cause() const {
  absl::MutexLock lock(&mutex_);
  return abort_cause_;
}

void ProcessGroup::AbortBackends(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (abort_cause_.ok()) abort_cause_ = cause;
  }
  for (const Served& served : backends_) served.backend->Abort(cause);  // The first cause stays.
}

}  // namespace syncline
