#include "core/group/negotiated_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/group/check_arguments.h"
#include "core/group/native_backend.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// How often a rank that waits for another one looks whether that lives, and whether it is aborted.
constexpr absl::Duration kSlice = absl::Milliseconds(500);

std::string KeyOf(int rank) { return absl::StrCat("use/", rank); }

}  // namespace

NegotiatedBackend::NegotiatedBackend(std::string preferred, BackendConfig config,
                                     std::shared_ptr<DeviceBackend> fallback)
    : preferred_(std::move(preferred)),
      config_(std::move(config)),
      fallback_(std::move(fallback)) {}

Capabilities NegotiatedBackend::capabilities() const {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = chosen_.find(Collective::kNoPeer);
    if (found != chosen_.end()) return found->second->capabilities();
  }
  // What either may serve; Run asks again when it is known which.
  Capabilities either = fallback_->capabilities();
  for (DType dtype : AllDTypes()) either.reduce_dtypes.insert(dtype);
  return either;
}

bool NegotiatedBackend::is_stream_ordered() const {
  absl::MutexLock lock(&mutex_);
  const auto found = chosen_.find(Collective::kNoPeer);
  return found != chosen_.end() && found->second->is_stream_ordered();
}

absl::StatusOr<Completion> NegotiatedBackend::Run(absl::Span<const Collective> collectives,
                                                  const CallContext& context) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto chosen, Choose(collectives.front(), context));
  for (const Collective& collective : collectives) {
    SYNCLINE_RETURN_IF_ERROR(
        CheckArguments(collective, chosen->capabilities(), preferred_, config_.rank, config_.size));
  }
  return chosen->Run(collectives, context);
}

absl::StatusOr<Completion> NegotiatedBackend::RunPlan(const Plan& plan,
                                                      const CallContext& context) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto chosen, Choose(plan.collective, context));
  return chosen->RunPlan(plan, context);
}

void NegotiatedBackend::Abort(const absl::Status& cause) {
  std::shared_ptr<DeviceBackend> made;
  {
    absl::MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = cause;
    made = made_;
  }
  if (made != nullptr) made->Abort(cause);
  fallback_->Abort(cause);
}

absl::StatusOr<std::shared_ptr<DeviceBackend>> NegotiatedBackend::Choose(
    const Collective& collective, const CallContext& context) {
  const int peer = IsP2p(collective.kind) ? collective.peer : Collective::kNoPeer;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = chosen_.find(peer);
    if (found != chosen_.end()) return found->second;
  }
  std::shared_ptr<DeviceBackend> chosen = fallback_;
  SYNCLINE_ASSIGN_OR_RETURN(bool can_use, CanUse());
  if (can_use && IsP2p(collective.kind) && peer == kAnySource) {
    return UnsupportedError(absl::StrCat("backend ", preferred_,
                                         ", which serves tensors of CUDA devices here, knows no "
                                         "receive from any source: name the rank that sends"));
  }
  for (int rank = 0; can_use && rank < config_.size; ++rank) {
    if (rank == config_.rank || (IsP2p(collective.kind) && rank != peer)) continue;
    SYNCLINE_ASSIGN_OR_RETURN(can_use, CanUse(rank, context));
  }
  if (can_use) {
    SYNCLINE_ASSIGN_OR_RETURN(chosen, MakePreferred());
  }
  absl::MutexLock lock(&mutex_);
  return chosen_.emplace(peer, chosen).first->second;
}

absl::StatusOr<bool> NegotiatedBackend::CanUse() {
  {
    absl::MutexLock lock(&mutex_);
    if (can_use_.has_value()) return *can_use_;
  }
  const absl::Status usable = BackendRegistry::Check(preferred_);
  SYNCLINE_RETURN_IF_ERROR(config_.store->Set(KeyOf(config_.rank), usable.message()));
  absl::MutexLock lock(&mutex_);
  can_use_ = usable.ok();
  return usable.ok();
}

absl::StatusOr<bool> NegotiatedBackend::CanUse(int rank, const CallContext& context) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      SYNCLINE_RETURN_IF_ERROR(aborted_);
    }
    const absl::Duration slice = std::min(kSlice, context.deadline.Remaining());
    const absl::StatusOr<std::string> said = config_.store->Get(KeyOf(rank), slice);
    if (said.ok()) {
      if (!said->empty()) {
        Log(LogLevel::kInfo,
            absl::StrCat("tensors of CUDA devices go through memory of the host: rank ", rank,
                         " cannot use backend ", preferred_, ": ", *said));
      }
      return said->empty();
    }
    if (KindOf(said.status()) != ErrorKind::kTimeout) return said.status();
    if (config_.check_peers != nullptr) SYNCLINE_RETURN_IF_ERROR(config_.check_peers());
    if (!context.deadline.Expired()) continue;
    return WithRanks(TimeoutError(absl::StrCat("rank ", rank, " has made no call on tensors of a ",
                                               "CUDA device within ",
                                               absl::FormatDuration(context.deadline.timeout()))),
                     {rank});
  }
}

absl::StatusOr<std::shared_ptr<DeviceBackend>> NegotiatedBackend::MakePreferred() {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(aborted_);
  if (made_ != nullptr) return made_;
  SYNCLINE_ASSIGN_OR_RETURN(BackendRegistry::Entry entry, BackendRegistry::Find(preferred_));
  BackendConfig config = config_;
  config.store = std::make_shared<PrefixStore>(preferred_, config_.store);
  SYNCLINE_ASSIGN_OR_RETURN(auto backend, entry.make(config));
  made_ = std::make_shared<NativeBackend>(std::move(backend), entry.capabilities);
  return made_;
}

}  // namespace syncline::group
