#include "backends/auto/hosts_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/auto/long_calls.h"
#include "backends/auto/sharing.h"
#include "backends/auto/short_calls.h"
#include "backends/gloo/call_check.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "core/group/backend_registry.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

// Up to so many bytes, fewer messages are worth more than fewer bytes. Measured by
// //tests:auto_benchmark.
constexpr size_t kShort = 64 << 10;

// When a step fails since a rank has gone, that rank's connections are about to.
constexpr absl::Duration kDelay = absl::Milliseconds(100);

size_t Bytes(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> HostsBackend::Make(const BackendConfig& config,
                                                            const Roster& roster,
                                                            const Topology& topology) {
  std::shared_ptr<HostsBackend> backend(new HostsBackend(roster, topology));
  SYNCLINE_RETURN_IF_ERROR(backend->JoinGloo(config));
  BackendConfig inside = config;
  inside.deadline = SharingDeadline(config.deadline);
  absl::Status joined = backend->JoinWires(inside);
  if (joined.ok()) joined = backend->JoinHost(inside);
  SYNCLINE_ASSIGN_OR_RETURN(const bool share, AllShare(config, roster, joined));
  if (!share) return nullptr;
  return backend;
}

absl::Status HostsBackend::JoinGloo(const BackendConfig& config) {
  BackendConfig between = config;
  between.store = std::make_shared<PrefixStore>("between hosts", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      gloo_, GlooBackend::Make(between, [this](const GlooBackend& gloo) { OnPeerGone(gloo); }));
  return absl::OkStatus();
}

absl::Status HostsBackend::JoinWires(const BackendConfig& config) {
  std::unique_ptr<WireDoor> door;
  absl::StatusOr<std::string> ticket = "";
  if (topology_.place < topology_.lanes) {
    auto opened = WireDoor::Open(config.local_address.empty() ? "127.0.0.1" : config.local_address);
    if (opened.ok()) {
      door = *std::move(opened);
      ticket = door->ticket();
    } else {
      ticket = opened.status();
    }
  }
  PrefixStore store("wires", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(const Roster roster,
                            Roster::Join(store, config.rank, config.size, ticket, config.deadline,
                                         [this] { return roster_.CheckAlive(); }));
  if (door == nullptr) return absl::OkStatus();
  std::vector<Wires::Member> members;
  for (int rank : topology_.lane())
    members.push_back({roster.Describe(rank), roster.payload(rank)});
  SYNCLINE_ASSIGN_OR_RETURN(auto wires,
                            Wires::Connect(*door, members, topology_.host, config.deadline));
  absl::MutexLock lock(&mutex_);
  wires_ = std::move(wires);
  if (has_lost_) wires_->Abort();
  return absl::OkStatus();
}

absl::Status HostsBackend::JoinHost(const BackendConfig& config) {
  const std::vector<int>& here = topology_.here();
  if (here.size() == 1) return absl::OkStatus();
  BackendConfig inside = config;
  inside.store =
      std::make_shared<PrefixStore>(absl::StrCat("host of rank ", here[0]), config.store);
  inside.rank = topology_.place;
  inside.size = static_cast<int>(here.size());
  inside.check_peers = [this] { return roster_.CheckAlive(); };
  SYNCLINE_ASSIGN_OR_RETURN(auto host, BackendRegistry::Make("shm", inside));
  absl::MutexLock lock(&mutex_);
  host_ = std::move(host);
  if (has_lost_) host_->Abort(NetworkError("a rank was lost"));
  return absl::OkStatus();
}

HostsBackend::~HostsBackend() { Abort(BackendError("the backend was destroyed")); }

// Gloo first: whoever is woken otherwise looks there for the reason.
void HostsBackend::Abort(const absl::Status& cause) {
  if (gloo_ != nullptr) gloo_->Abort(cause);
  absl::MutexLock lock(&mutex_);
  ++gone_;
  AbortAllButGloo(cause);
}

void HostsBackend::AbortAllButGloo(const absl::Status& cause) {
  if (host_ != nullptr) host_->Abort(cause);
  if (wires_ != nullptr) wires_->Abort();
}

void HostsBackend::OnPeerGone(const GlooBackend& gloo) {
  absl::MutexLock lock(&mutex_);
  ++gone_;
  if (!gloo.has_lost_peer()) return;
  has_lost_ = true;
  AbortAllButGloo(NetworkError("a rank was lost"));
}

int HostsBackend::gone() {
  absl::MutexLock lock(&mutex_);
  return gone_;
}

void HostsBackend::AwaitGoneMoreThan(int before) {
  absl::MutexLock lock(&mutex_);
  auto more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_ > before; };
  Deadline(kDelay).Await(mutex_, absl::Condition(&more));
}

// For a rank that waits for one of this host in another call.
std::string HostsBackend::StoppedHere() const {
  std::string text;
  for (int rank : topology_.here()) {
    if (roster_.Probe(rank) != Liveness::kStopped) continue;
    absl::StrAppend(&text, "; ", roster_.Describe(rank), " is stopped");
  }
  return text;
}

absl::Status HostsBackend::Judge(const absl::Status& status, const CallContext& context,
                                 int gone_before) {
  if (IsInterrupted(status)) return status;
  if (KindOf(status) == ErrorKind::kTimeout) {
    const std::string after = absl::FormatDuration(context.deadline.timeout());
    return TimeoutError(absl::StrCat("not complete after ", after, StoppedHere()));
  }
  AwaitGoneMoreThan(gone_before);
  return NetworkError("the connections were closed");
}

absl::Status HostsBackend::Perform(const Call& call, const CallContext& context, Move move) {
  const int gone_before = gone();
  const absl::Status status = gloo_->Perform(call, context, [&](const auto& gloo) -> absl::Status {
    Passage passage({topology_, host_.get(), wires_.get(), memory_}, call, context);
    const absl::Status status = move(passage, gloo);
    if (status.ok()) return status;
    if (passage.has_mismatch()) {
      passage.Object();
      return CallTheRoll(*gloo, call);
    }
    // A mismatch is gloo's then, and known to all.
    if (KindOf(status) == ErrorKind::kMismatch) return status;
    return Judge(status, context, gone_before);
  });
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    AbortAllButGloo(IsInterrupted(status) ? BackendError(status.message()) : status);
  }
  return status;
}

absl::Status HostsBackend::Run(const Call& call, const CallContext& context,
                               absl::FunctionRef<absl::Status(Passage&)> move) {
  return Perform(call, context, [&](Passage& passage, const auto&) { return move(passage); });
}

absl::Status HostsBackend::RunInGloo(const Call& call, const CallContext& context,
                                     absl::FunctionRef<void(Collective&)> move) {
  return Perform(call, context, [&](Passage& passage, const auto& gloo) -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(ShortAllReduce(passage, Tensor(), ReduceOp::kSum));
    Collective collective(gloo, context.sequence);
    move(collective);
    return absl::OkStatus();
  });
}

absl::Status HostsBackend::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  return Run(Call::Broadcast(tensor, root, context), context, [&](Passage& passage) {
    return tensor.nbytes() <= kShort ? ShortBroadcast(passage, tensor, root)
                                     : LongBroadcast(passage, tensor, root);
  });
}

absl::Status HostsBackend::AllReduce(const Tensor& tensor, ReduceOp op,
                                     const CallContext& context) {
  return Run(Call::AllReduce(tensor, op, context), context, [&](Passage& passage) {
    return tensor.nbytes() <= kShort ? ShortAllReduce(passage, tensor, op)
                                     : LongAllReduce(passage, tensor, op);
  });
}

absl::Status HostsBackend::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                  const CallContext& context) {
  return Run(Call::Reduce(tensor, op, root, context), context, [&](Passage& passage) {
    return tensor.nbytes() <= kShort ? ShortReduce(passage, tensor, op, root)
                                     : LongReduce(passage, tensor, op, root);
  });
}

absl::Status HostsBackend::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                     const CallContext& context) {
  return Run(Call::AllGather(outputs, input, context), context, [&](Passage& passage) {
    return Bytes(outputs) <= kShort ? ShortAllGather(passage, outputs, input)
                                    : LongAllGather(passage, outputs, input);
  });
}

absl::Status HostsBackend::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                         ReduceOp op, const CallContext& context) {
  const Call call = Call::ReduceScatter(output, inputs, op, context);
  const bool is_short = Bytes(inputs) <= kShort;
  if (!is_short && !topology_.is_even()) {
    return RunInGloo(call, context,
                     [&](Collective& collective) { collective.ReduceScatter(output, inputs, op); });
  }
  return Run(call, context, [&](Passage& passage) {
    return is_short ? ShortReduceScatter(passage, output, inputs, op)
                    : LongReduceScatter(passage, output, inputs, op);
  });
}

absl::Status HostsBackend::Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                                  const CallContext& context) {
  return RunInGloo(Call::Gather(input, root, context), context,
                   [&](Collective& collective) { collective.Gather(outputs, input, root); });
}

absl::Status HostsBackend::Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                                   const CallContext& context) {
  return RunInGloo(Call::Scatter(output, root, context), context,
                   [&](Collective& collective) { collective.Scatter(output, inputs, root); });
}

// The ranks tell each other the largest and the smallest part that one sends or expects: where
// these are the same, all fits. Else gloo compares them one by one.
absl::Status HostsBackend::AllToAll(absl::Span<const Tensor> outputs,
                                    absl::Span<const Tensor> inputs, const CallContext& context) {
  const Call call = Call::AllToAll(outputs, inputs, context);
  return Perform(call, context, [&](Passage& passage, const auto& gloo) -> absl::Status {
    int64_t most = 0, least = std::numeric_limits<int64_t>::max();
    for (const auto* counts : {&call.counts, &call.expected}) {
      most = std::max(most, *std::max_element(counts->begin(), counts->end()));
      least = std::min(least, *std::min_element(counts->begin(), counts->end()));
    }
    int64_t bounds[] = {most, -least};
    SYNCLINE_RETURN_IF_ERROR(
        ShortAllReduce(passage, Tensor(bounds, DType::kInt64, {2}), ReduceOp::kMax));
    if (bounds[0] != -bounds[1]) {
      SYNCLINE_RETURN_IF_ERROR(gloo_->Agree(*gloo, call, context.deadline));
    }
    Collective(gloo, context.sequence).AllToAll(outputs, inputs);
    return absl::OkStatus();
  });
}

absl::Status HostsBackend::Barrier(const CallContext& context) {
  return Run(Call::Barrier(context), context,
             [&](Passage& passage) { return ShortAllReduce(passage, Tensor(), ReduceOp::kSum); });
}

}  // namespace syncline
