#include "backends/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/thread.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// How often NCCL is asked whether it has gone on: at first as often as short work ends.
constexpr absl::Duration kShortestPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);

// One wait for a key of the store: a rank looks at its peers between two.
constexpr absl::Duration kStoreSlice = absl::Milliseconds(50);

// After an error of NCCL, which may be what follows from the end of a peer: how long this looks for
// that, which says more.
constexpr absl::Duration kBlameTime = absl::Milliseconds(300);

// How much longer than the rank that has asked for a communicator one waits for it: that one's own
// error says more.
constexpr absl::Duration kRequestGrace = absl::Seconds(1);

absl::Duration Longer(absl::Duration pause) { return std::min(pause * 1.5, kLongestPause); }

std::string KeyOf(const Communicator& made) {
  if (!made.channel.has_value()) return absl::StrCat("communicator/", made.number);
  return absl::StrCat("communicator/", made.channel->src, "-", made.channel->dst);
}

}  // namespace

absl::Status NcclError(const NcclApi& api, absl::string_view function, NcclResult result) {
  const char* const last = api.get_last_error(nullptr);
  const bool has_last = last != nullptr && *last != '\0';
  return BackendError(absl::StrCat(function, " failed: ", api.get_error_string(result),
                                   has_last ? " (" : "", has_last ? last : "",
                                   has_last ? ")" : ""));
}

SplitCommunicator::~SplitCommunicator() {
  if (comm_ == nullptr) return;
  // NCCL may take its time.
  const auto abort = [&api = api_, &runtime = runtime_, device = device_, comm = comm_] {
    const device::DeviceRuntime::ContextScope context(runtime, device);
    const NcclResult result = api.comm_abort(comm);
    if (result != kNcclSuccess && result != kNcclInProgress) {
      Log(LogLevel::kWarning, NcclError(api, "ncclCommAbort", result).message());
    }
  };
  absl::StatusOr<std::thread> aborter = base::StartThread("the end of a communicator", abort);
  if (aborter.ok()) {
    aborter->detach();
  } else {
    abort();
  }
}

absl::Status Communicators::CallScope::status() const {
  SYNCLINE_RETURN_IF_ERROR(context_.status());
  communicators_.calls_mutex_.AssertReaderHeld();
  return communicators_.is_aborted_ ? BackendError("the group's communicators have been aborted")
                                    : absl::OkStatus();
}

Communicator* Communicators::Find(const absl::optional<Channel>& channel, const Device& device,
                                  bool& is_new) {
  for (Communicator& made : all_) {
    const bool is_same_kind = made.channel.has_value() == channel.has_value() &&
                              (!channel.has_value() || (made.channel->src == channel->src &&
                                                        made.channel->dst == channel->dst));
    if (!is_same_kind) continue;
    // A channel has one, since its messages match in their order and one end does not know which
    // device the other's are on: see Operations for those of other devices.
    if (channel.has_value() || made.device == device) return &made;
  }
  Communicator& made = all_.emplace_back();
  made.channel = channel;
  if (!channel.has_value()) made.number = group_.NumberOf(device);
  made.device = device;
  made.rank = channel.has_value() ? (channel->src == group_.rank() ? 0 : 1) : group_.rank();
  made.size = channel.has_value() ? 2 : group_.size();
  is_new = true;
  return &made;
}

absl::Status Communicators::CheckInterrupted(const PublishedCall& call) {
  const absl::Status interruption = CheckInterrupt();
  if (interruption.ok()) return interruption;
  const absl::Status cause =
      WithRanks(BackendError(absl::StrCat(group_.peers().Describe(group_.rank()), " was ",
                                          interruption.message())),
                {group_.rank()});
  group_.Fail(cause, &call.description).IgnoreError();
  return interruption;
}

absl::StatusOr<Communicator*> Communicators::Get(absl::optional<Channel> channel,
                                                 const Device& device, const PublishedCall& call) {
  const auto check = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupted(call));
    ServeRequests();
    return group_.Check(call);
  };
  bool is_new = false;
  Communicator* made;
  {
    absl::MutexLock lock(&mutex_);
    last_device_ = device;
    made = Find(channel, device, is_new);
    if (made->state == Communicator::State::kReady) return made;
  }
  if (is_new) {
    if (channel.has_value()) group_.board().Request(*channel, call.deadline.Remaining());
    absl::Status status = Make(*made, check);
    if (!status.ok() && !IsInterrupted(status)) status = group_.Fail(status, &call.description);
    absl::MutexLock lock(&mutex_);
    made->state = status.ok() ? Communicator::State::kReady : Communicator::State::kFailed;
    if (!status.ok()) return status;
    return made;
  }
  // Another thread makes it.
  while (true) {
    bool has_failed;
    {
      absl::MutexLock lock(&mutex_);
      const auto is_made = [made] { return made->state != Communicator::State::kMaking; };
      mutex_.AwaitWithTimeout(absl::Condition(&is_made), kLongestPause);
      if (made->state == Communicator::State::kReady) return made;
      has_failed = made->state == Communicator::State::kFailed;
    }
    SYNCLINE_RETURN_IF_ERROR(check());
    if (has_failed) {
      return group_.Fail(BackendError(absl::StrCat(call.description.ToString(),
                                                   ": its communicator could not be made")),
                         &call.description);
    }
  }
}

absl::Status Communicators::Adopt(SplitCommunicator& split) {
  SYNCLINE_ASSIGN_OR_RETURN(
      auto stream, runtime_.MakeStream(split.device(), device::DeviceRuntime::Priority::kHigh));
  bool is_new = false;
  absl::MutexLock lock(&mutex_);
  last_device_ = split.device();
  Communicator& made = *Find(absl::nullopt, split.device(), is_new);
  made.comm = split.Release();
  made.stream = std::move(stream);
  made.state = Communicator::State::kReady;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SplitCommunicator>> Communicators::Split(const Device& device,
                                                                        const SplitPlace& place,
                                                                        const PublishedCall& call) {
  const auto check = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupted(call));
    ServeRequests();
    return group_.Check(call);
  };
  SYNCLINE_ASSIGN_OR_RETURN(Communicator* const parent, Get(absl::nullopt, device, call));
  std::list<Communicator>::iterator child;
  {
    absl::MutexLock lock(&mutex_);
    child = children_.emplace(children_.end());
    child->device = device;
  }
  UseScope use(*this);
  SYNCLINE_RETURN_IF_ERROR(use.Add(*parent, call));
  NcclConfig config;
  config.blocking = 0;
  NcclResult result;
  {
    const CallScope scope(*this, device);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    result = api_.comm_split(parent->comm,
                             place.color == SplitPlace::kNoColor ? kNcclSplitNoColor : place.color,
                             place.key, &child->comm, &config);
  }
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return NcclError(api_, "ncclCommSplit", result);
  }
  // Before that is done, the handle need not be there.
  SYNCLINE_RETURN_IF_ERROR(AwaitReady(*parent, check));
  if (child->comm != nullptr) SYNCLINE_RETURN_IF_ERROR(AwaitReady(*child, check));
  // From here on AbortAll does not end it.
  absl::ReaderMutexLock calls(&calls_mutex_);
  if (is_aborted_) return BackendError("the communicators have been aborted");
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<SplitCommunicator> split;
  if (child->comm != nullptr) {
    split = std::make_shared<SplitCommunicator>(api_, runtime_, device, child->comm);
  }
  children_.erase(child);
  return split;
}

void Communicators::ServeRequests() {
  absl::MutexLock lock(&mutex_);
  if (!last_device_.has_value() || group_.is_over()) return;
  const int rank = group_.rank();
  for (int other = 0; other < group_.size(); ++other) {
    if (other == rank) continue;
    for (const Channel& channel : {Channel{rank, other}, Channel{other, rank}}) {
      const std::optional<absl::Duration> limit = group_.board().Requested(channel);
      if (!limit.has_value()) continue;
      bool is_new = false;
      Communicator* const made = Find(channel, *last_device_, is_new);
      if (!is_new) continue;
      auto has_ended = std::make_shared<std::atomic<bool>>(false);
      auto serve = [this, made, has_ended, other, limit = *limit] {
        const Deadline deadline(limit + kRequestGrace);
        const auto check = [&]() -> absl::Status {
          // No call of this rank may look at the others meanwhile.
          group_.CheckPeers();
          if (group_.is_over()) return BackendError("the group is over");
          if (group_.board().LeaveReason(other).has_value()) return BackendError("it has left");
          if (!deadline.Expired()) return absl::OkStatus();
          // Its call has ended, which it would have said.
          return group_.Fail(
              WithRanks(TimeoutError(absl::StrCat(group_.peers().Describe(other),
                                                  " has asked for a communicator and not made its "
                                                  "own within ",
                                                  absl::FormatDuration(limit), "; ",
                                                  group_.board().LastActivity(other))),
                        {other}));
        };
        const absl::Status status = Make(*made, check);
        {
          absl::MutexLock server_lock(&mutex_);
          made->state = status.ok() ? Communicator::State::kReady : Communicator::State::kFailed;
        }
        if (!status.ok() && check().ok()) group_.Fail(status).IgnoreError();
        has_ended->store(true);
      };
      absl::StatusOr<std::thread> thread = base::StartThread("communicators of NCCL", serve);
      if (!thread.ok()) {
        all_.pop_back();  // The next round tries again.
        return;
      }
      servers_.push_back({*std::move(thread), std::move(has_ended)});
    }
  }
}

absl::StatusOr<NcclUniqueId> Communicators::ExchangeId(const Communicator& made,
                                                       const Checker& check) {
  NcclUniqueId id;
  const std::string key = KeyOf(made);
  if (made.rank == 0) {
    NcclResult result;
    {
      const CallScope scope(*this, made.device);
      SYNCLINE_RETURN_IF_ERROR(scope.status());
      result = api_.get_unique_id(&id);
    }
    if (result != kNcclSuccess) return NcclError(api_, "ncclGetUniqueId", result);
    if (made.size > 1) {
      SYNCLINE_RETURN_IF_ERROR(
          store_->Set(key, absl::string_view(id.internal, sizeof(id.internal))));
    }
    return id;
  }
  while (true) {
    SYNCLINE_RETURN_IF_ERROR(check());
    const absl::Status is_set = store_->Wait({key}, kStoreSlice);
    if (is_set.ok()) break;
    if (KindOf(is_set) != ErrorKind::kTimeout) return is_set;
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text, store_->Get(key, kStoreProbeTimeout));
  if (text.size() != sizeof(id.internal)) {
    return BackendError(absl::StrCat("the store holds no id of NCCL under ", key));
  }
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

absl::Status Communicators::Make(Communicator& made, const Checker& check) {
  SYNCLINE_ASSIGN_OR_RETURN(NcclUniqueId id, ExchangeId(made, check));
  SYNCLINE_ASSIGN_OR_RETURN(
      made.stream, runtime_.MakeStream(made.device, device::DeviceRuntime::Priority::kHigh));
  NcclConfig config;
  config.blocking = 0;
  NcclResult result;
  {
    const CallScope scope(*this, made.device);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    result = api_.comm_init_rank_config(&made.comm, made.size, id, made.rank, &config);
  }
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return NcclError(api_, "ncclCommInitRankConfig", result);
  }
  return AwaitReady(made, check);
}

absl::Status Communicators::AwaitReady(Communicator& made, const Checker& check) {
  absl::Duration pause = kShortestPause;
  const Deadline blame = Deadline::FromFirstWait(kBlameTime);
  while (true) {
    NcclResult state = kNcclSuccess;
    NcclResult result;
    {
      const CallScope scope(*this, made.device);
      if (!scope.status().ok()) break;
      result = api_.comm_get_async_error(made.comm, &state);
    }
    if (result != kNcclSuccess) return NcclError(api_, "ncclCommGetAsyncError", result);
    if (state == kNcclSuccess) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(check());
    if (state != kNcclInProgress && blame.Expired()) return NcclError(api_, "NCCL's work", state);
    absl::SleepFor(pause);
    pause = Longer(pause);
  }
  SYNCLINE_RETURN_IF_ERROR(check());
  return BackendError("the communicators have been aborted");
}

absl::Status Communicators::BeginUse(Communicator& communicator, const PublishedCall& call) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto is_free = [&] { return !communicator.is_in_use; };
      if (mutex_.AwaitWithTimeout(absl::Condition(&is_free), kLongestPause)) {
        communicator.is_in_use = true;
        return absl::OkStatus();
      }
    }
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupted(call));
    SYNCLINE_RETURN_IF_ERROR(group_.Check(call));
  }
}

void Communicators::EndUse(Communicator& communicator) {
  while (true) {
    std::vector<Communicator::Deregistration> deregistrations;
    {
      absl::MutexLock lock(&mutex_);
      deregistrations.swap(communicator.deregistrations);
      if (deregistrations.empty()) {
        communicator.is_in_use = false;
        return;
      }
    }
    const CallScope scope(*this, communicator.device);
    // Communicators that have ended have let go of it.
    if (!scope.status().ok()) continue;
    const device::DeviceRuntime::RelaxedCaptureScope relaxed(runtime_);
    for (const Communicator::Deregistration& deregistration : deregistrations) {
      const NcclResult result = api_.comm_deregister(communicator.comm, deregistration.handle);
      {
        absl::MutexLock lock(&mutex_);
        std::vector<void*>& registered = communicator.registered;
        const auto found = std::find(registered.begin(), registered.end(), deregistration.handle);
        if (found != registered.end()) registered.erase(found);
      }
      if (result == kNcclSuccess) continue;
      Log(LogLevel::kWarning, NcclError(api_, "ncclCommDeregister", result).message());
    }
  }
}

void Communicators::AddRegistered(NcclComm comm, void* handle) {
  absl::MutexLock lock(&mutex_);
  const auto is_of = [&](const Communicator& made) { return made.comm == comm; };
  const auto made = std::find_if(all_.begin(), all_.end(), is_of);
  if (made != all_.end()) made->registered.push_back(handle);
}

void Communicators::Deregister(NcclComm comm, void* handle, std::shared_ptr<const void> memory) {
  Communicator* found = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto is_of = [&](const Communicator& made) { return made.comm == comm; };
    const auto made = std::find_if(all_.begin(), all_.end(), is_of);
    if (made == all_.end()) return;
    made->deregistrations.push_back({handle, std::move(memory)});
    // Who uses it does what there is to be done at the end of that.
    if (std::exchange(made->is_in_use, true)) return;
    found = &*made;
  }
  EndUse(*found);
}

absl::Status Communicators::Settle(absl::Span<Communicator* const> used,
                                   const PublishedCall& call) {
  const auto check = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupted(call));
    ServeRequests();
    return group_.Check(call);
  };
  for (Communicator* const made : used) SYNCLINE_RETURN_IF_ERROR(AwaitReady(*made, check));
  return absl::OkStatus();
}

absl::Status Communicators::AsyncError(absl::Span<Communicator* const> used) {
  for (Communicator* const made : used) {
    const CallScope scope(*this, made->device);
    if (!scope.status().ok()) return absl::OkStatus();
    NcclResult state = kNcclSuccess;
    const NcclResult result = api_.comm_get_async_error(made->comm, &state);
    if (result != kNcclSuccess) state = result;
    if (state != kNcclSuccess && state != kNcclInProgress) {
      return NcclError(api_, "NCCL's work", state);
    }
  }
  return absl::OkStatus();
}

bool Communicators::BeginEnd() {
  // Nobody is in a function of NCCL, nor will be.
  absl::WriterMutexLock lock(&calls_mutex_);
  return !std::exchange(is_aborted_, true);
}

std::vector<NcclComm> Communicators::TakeAll() {
  std::vector<NcclComm> all;
  absl::MutexLock lock(&mutex_);
  for (std::list<Communicator>* const list : {&all_, &children_}) {
    for (Communicator& made : *list) {
      if (made.comm != nullptr) all.push_back(made.comm);
    }
  }
  return all;
}

void Communicators::AbortNow(const std::vector<NcclComm>& all) {
  // Together: NCCL's kernels of one communicator may keep those of another from ending.
  api_.group_start();
  for (const NcclComm comm : all) {
    const NcclResult result = api_.comm_abort(comm);
    if (result != kNcclSuccess && result != kNcclInProgress) {
      Log(LogLevel::kWarning, NcclError(api_, "ncclCommAbort", result).message());
    }
  }
  api_.group_end();
}

void Communicators::AbortAll() {
  if (!BeginEnd()) return;
  const std::vector<NcclComm> all = TakeAll();
  if (all.empty()) return;
  const device::DeviceRuntime::ContextScope context(runtime_, DeviceOfAny());
  AbortNow(all);
}

void Communicators::DeregisterAll() {
  std::vector<std::pair<NcclComm, void*>> registered;
  {
    absl::MutexLock lock(&mutex_);
    for (Communicator& made : all_) {
      for (void* const handle : std::exchange(made.registered, {})) {
        registered.emplace_back(made.comm, handle);
      }
    }
  }
  for (const auto& [comm, handle] : registered) {
    const NcclResult result = api_.comm_deregister(comm, handle);
    if (result == kNcclSuccess) continue;
    Log(LogLevel::kWarning, NcclError(api_, "ncclCommDeregister", result).message());
  }
}

absl::Status Communicators::Finalize(const std::vector<NcclComm>& all) {
  const Deadline deadline(kLeaveTime);
  // Together: ranks may have made theirs in different orders.
  NcclResult result = api_.group_start();
  if (result != kNcclSuccess) return NcclError(api_, "ncclGroupStart", result);
  for (const NcclComm comm : all) {
    const NcclResult each = api_.comm_finalize(comm);
    if (each != kNcclSuccess && each != kNcclInProgress) result = each;
  }
  const NcclResult ended = api_.group_end();
  if (result == kNcclSuccess && ended != kNcclInProgress) result = ended;
  if (result != kNcclSuccess) return NcclError(api_, "ncclCommFinalize", result);
  absl::Duration pause = kShortestPause;
  for (auto comm = all.begin(); comm != all.end();) {
    NcclResult state = kNcclSuccess;
    result = api_.comm_get_async_error(*comm, &state);
    if (result != kNcclSuccess) return NcclError(api_, "ncclCommGetAsyncError", result);
    if (state == kNcclSuccess) {
      ++comm;
      continue;
    }
    if (state != kNcclInProgress) return NcclError(api_, "ncclCommFinalize", state);
    SYNCLINE_RETURN_IF_ERROR(group_.CheckLeaving());
    if (deadline.Expired()) {
      return TimeoutError(
          absl::StrCat("ncclCommFinalize has not ended within ", absl::FormatDuration(kLeaveTime)));
    }
    absl::SleepFor(pause);
    pause = Longer(pause);
  }
  return absl::OkStatus();
}

void Communicators::LeaveAll() {
  if (!BeginEnd()) return;
  const std::vector<NcclComm> all = TakeAll();
  if (all.empty()) return;
  const device::DeviceRuntime::ContextScope context(runtime_, DeviceOfAny());
  DeregisterAll();
  const absl::Status finalized = Finalize(all);
  if (!finalized.ok()) {
    Log(LogLevel::kInfo, absl::StrCat("communicators are aborted: ", finalized.message()));
    return AbortNow(all);
  }
  for (const NcclComm comm : all) {
    const NcclResult result = api_.comm_destroy(comm);
    if (result != kNcclSuccess && result != kNcclInProgress) {
      Log(LogLevel::kWarning, NcclError(api_, "ncclCommDestroy", result).message());
    }
  }
}

Device Communicators::DeviceOfAny() {
  absl::MutexLock lock(&mutex_);
  return all_.empty() ? children_.front().device : all_.front().device;
}

bool Communicators::JoinServers() {
  std::vector<Server> ended;
  bool all_have = true;
  {
    absl::MutexLock lock(&mutex_);
    for (auto server = servers_.begin(); server != servers_.end();) {
      if (!server->has_ended->load()) {
        all_have = false;
        ++server;
        continue;
      }
      ended.push_back(std::move(*server));
      server = servers_.erase(server);
    }
  }
  for (Server& server : ended) server.thread.join();
  return all_have;
}

}  // namespace syncline::nccl
