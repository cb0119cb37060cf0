#include "core/process_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(const Options& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return ArgumentError(absl::StrCat("rank ", options.rank, " is not in a group of ", options.size,
                                      ": ranks go from 0 to size - 1"));
  }
  if (options.store == nullptr) return ArgumentError("a group needs a store");
  if (options.timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  if (!BackendRegistry::Has(options.backend)) {
    return ArgumentError(absl::StrCat("unknown backend '", options.backend, "'; choose one of: ",
                                      absl::StrJoin(BackendRegistry::Names(), ", ")));
  }
  BackendConfig config;
  config.store = options.store;
  config.rank = options.rank;
  config.size = options.size;
  config.local_address = options.local_address;
  config.deadline = Deadline(options.connect_timeout.value_or(options.timeout));
  auto backend = BackendRegistry::Make(options.backend, config);
  if (!backend.ok()) {
    return Annotate(backend.status(),
                    absl::StrCat("rank ", options.rank, " could not join group '", options.name,
                                 "' (", options.backend, ", ", options.size, " ranks)"));
  }
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(options, *std::move(backend)));
}

ProcessGroup::~ProcessGroup() { Abort("the group was destroyed"); }

absl::Status ProcessGroup::Broadcast(const Tensor& tensor, int64_t root, Timeout timeout) {
  return Run({OpKind::kBroadcast, tensor, {}, {}, root}, timeout);
}
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::BroadcastAsync(const Tensor& tensor,
                                                                   int64_t root, Timeout timeout) {
  return Start({OpKind::kBroadcast, tensor, {}, {}, root}, timeout);
}

absl::Status ProcessGroup::AllReduce(const Tensor& tensor, ReduceOp op, Timeout timeout) {
  return Run({OpKind::kAllReduce, tensor, {}, op}, timeout);
}
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::AllReduceAsync(const Tensor& tensor,
                                                                   ReduceOp op, Timeout timeout) {
  return Start({OpKind::kAllReduce, tensor, {}, op}, timeout);
}

absl::Status ProcessGroup::AllGather(const std::vector<Tensor>& outputs, const Tensor& input,
                                     Timeout timeout) {
  return Run({OpKind::kAllGather, input, outputs}, timeout);
}
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::AllGatherAsync(
    const std::vector<Tensor>& outputs, const Tensor& input, Timeout timeout) {
  return Start({OpKind::kAllGather, input, outputs}, timeout);
}

absl::Status ProcessGroup::Barrier(Timeout timeout) { return Run({OpKind::kBarrier}, timeout); }
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::BarrierAsync(Timeout timeout) {
  return Start({OpKind::kBarrier}, timeout);
}

absl::Status ProcessGroup::Send(const Tensor& tensor, int64_t dst, int64_t tag, Timeout timeout) {
  return Run({OpKind::kSend, tensor, {}, {}, dst, tag}, timeout);
}
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::SendAsync(const Tensor& tensor, int64_t dst,
                                                              int64_t tag, Timeout timeout) {
  return Start({OpKind::kSend, tensor, {}, {}, dst, tag}, timeout);
}

absl::Status ProcessGroup::Recv(const Tensor& tensor, int64_t src, int64_t tag, Timeout timeout) {
  return Run({OpKind::kRecv, tensor, {}, {}, src, tag}, timeout);
}
absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::RecvAsync(const Tensor& tensor, int64_t src,
                                                              int64_t tag, Timeout timeout) {
  return Start({OpKind::kRecv, tensor, {}, {}, src, tag}, timeout);
}

absl::Status ProcessGroup::status() const {
  absl::MutexLock lock(&mutex_);
  return cause_;
}

void ProcessGroup::Close(absl::Duration timeout) {
  const absl::Status closed = BackendError(absl::StrCat("group '", name(), "' is closed"));
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = closed;  // Refuses new operations; those in flight go on.
    auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return in_flight_ == 0; };
    mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
  }
  backend_->Abort(closed);
}

void ProcessGroup::Abort(absl::string_view reason) {
  Break(BackendError(
      absl::StrCat("group '", name(), "' was aborted by rank ", rank(), ": ", reason)));
}

absl::Status ProcessGroup::Run(const Operation& operation, Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline(timeout.value_or(options_.timeout));
  bool has_begun = false;
  absl::Status status = LaneOf(operation).Run(deadline, [&](uint64_t number) {
    has_begun = true;
    return Execute(operation, {number, deadline, static_cast<int>(operation.tag)});
  });
  if (has_begun) return status;
  // The other ranks will wait for it in vain: this is the end of the group.
  return Finished(Annotate(
      status, absl::StrCat("rank ", rank(), " of group '", name(), "': ", Name(operation.kind))));
}

absl::StatusOr<std::shared_ptr<Work>> ProcessGroup::Start(Operation operation, Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(Admit(operation, timeout));
  const Deadline deadline(timeout.value_or(options_.timeout));
  std::shared_ptr<Work> work;
  absl::Status posted = LaneOf(operation).Post([&](uint64_t number) {
    work = std::make_shared<Work>(operation.ToString(number));
    const CallContext context = {number, deadline, static_cast<int>(operation.tag)};
    return [this, work, context, operation = std::move(operation)] {
      work->Start();
      work->Finish(Execute(operation, context));  // Its callbacks may destroy the group.
    };
  });
  if (!posted.ok()) return Finished(posted);
  return work;
}

absl::Status ProcessGroup::Admit(const Operation& operation, Timeout timeout) {
  if (timeout.has_value() && *timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(*timeout)));
  }
  absl::Status valid = Validate(operation, *backend_, options_.rank, options_.size);
  if (!valid.ok()) return Annotate(valid, Name(operation.kind));
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok()) {
    return Annotate(cause_, absl::StrCat(Name(operation.kind), " was refused because group '",
                                         name(), "' can no longer be used"));
  }
  ++in_flight_;
  return absl::OkStatus();
}

absl::Status ProcessGroup::Execute(const Operation& operation, const CallContext& context) {
  absl::Status status = Dispatch(operation, context, *backend_);
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("rank ", rank(), " of group '", name(),
                                           "': ", operation.ToString(context.sequence)));
  }
  return Finished(std::move(status));
}

absl::Status ProcessGroup::Finished(absl::Status status) {
  if (!status.ok() && !IsHarmless(status)) Break(status);
  absl::MutexLock lock(&mutex_);
  --in_flight_;
  return status;
}

Lane& ProcessGroup::LaneOf(const Operation& operation) {
  if (!operation.is_p2p()) return collectives_;
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
  backend_->Abort(cause);  // Idempotent: the first cause stays.
}

}  // namespace syncline
