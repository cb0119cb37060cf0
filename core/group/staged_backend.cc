#include "core/group/staged_backend.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "core/device/stream_handle.h"
#include "core/group/check_arguments.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// Tensors in a slot begin at cache lines.
constexpr size_t kAlignment = 64;

// How long a call that has failed waits for its copies, which no rank holds up.
constexpr absl::Duration kDrainTimeout = absl::Seconds(1);

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool ReadsTensor(const Collective& call, int rank) {
  switch (call.kind) {
    case OpKind::kBroadcast:
      return call.peer == rank;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kScan:
    case OpKind::kExscan:
    case OpKind::kSend:
      return true;
    default:
      return false;
  }
}

bool HasLists(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

// The elements of each tensor that one call of the host's backend works on.
struct Range {
  int64_t offset = 0;
  std::optional<int64_t> count;  // All, if not given.

  Tensor Of(const Tensor& tensor) const {
    return tensor.Slice(offset, count.value_or(tensor.numel()));
  }
};

// Tensors of a device and what stands for them in memory of the host, and the copies between them.
class HostMirror {
 public:
  // Lays its tensors out from `memory` on.
  explicit HostMirror(std::byte* memory) : memory_(memory) {}

  // The host's tensor for `tensor`; copied in before the call, or out after it.
  Tensor Add(const Tensor& tensor, bool reads, bool writes) {
    Tensor host(memory_ + used_, tensor.dtype(), tensor.shape());
    used_ += Aligned(tensor.nbytes());
    if (tensor.nbytes() > 0 && reads) in_.push_back({host.data(), tensor.data(), tensor.nbytes()});
    if (tensor.nbytes() > 0 && writes) {
      out_.push_back({tensor.data(), host.data(), tensor.nbytes()});
    }
    return host;
  }

  // The call on the host that stands for `call`, on a range of its tensors.
  Collective Mirrored(const Collective& call, const Range& range, int rank) {
    Collective host = call;
    if (call.tensor != nullptr) {
      host.OwnTensor(
          Add(range.Of(*call.tensor), ReadsTensor(call, rank), WritesTensor(call, rank)));
    }
    host.OwnOutputs(MirroredList(call.outputs, range, false, true));
    host.OwnInputs(MirroredList(call.inputs, range, true, false));
    return host;
  }

  absl::Status CopyIn(device::DeviceRuntime& runtime, const Stream& stream) const {
    return Copy(in_, runtime, stream);
  }
  absl::Status CopyOut(device::DeviceRuntime& runtime, const Stream& stream) const {
    return Copy(out_, runtime, stream);
  }
  bool has_output() const { return !out_.empty(); }

  // The bytes that Mirrored takes.
  static size_t BytesOf(const Collective& call, const Range& range) {
    const auto bytes = [&](const Tensor& tensor) { return Aligned(range.Of(tensor).nbytes()); };
    size_t sum = call.tensor != nullptr ? bytes(*call.tensor) : 0;
    for (const Tensor& tensor : call.outputs) sum += bytes(tensor);
    for (const Tensor& tensor : call.inputs) sum += bytes(tensor);
    return sum;
  }

 private:
  struct Copied {
    void* to;
    const void* from;
    size_t bytes;
  };

  std::vector<Tensor> MirroredList(absl::Span<const Tensor> list, const Range& range, bool reads,
                                   bool writes) {
    std::vector<Tensor> mirrored;
    for (const Tensor& tensor : list) mirrored.push_back(Add(range.Of(tensor), reads, writes));
    return mirrored;
  }

  static absl::Status Copy(const std::vector<Copied>& copies, device::DeviceRuntime& runtime,
                           const Stream& stream) {
    for (const Copied& copy : copies) {
      SYNCLINE_RETURN_IF_ERROR(runtime.Copy(copy.to, copy.from, copy.bytes, stream));
    }
    return absl::OkStatus();
  }

  std::byte* const memory_;
  size_t used_ = 0;
  std::vector<Copied> in_, out_;
};

// How many elements of each tensor go in one chunk; none if the call cannot be cut, since sizes
// differ between ranks. The same on all ranks of a call: it depends on what they must agree on.
std::optional<int64_t> ElementsPerChunk(const Collective& call, size_t chunk_bytes, int size) {
  // Messages go whole: a receive from any rank and one from its sender would mix their chunks, and
  // the two ends compare no more than the size of what the host's backend moves.
  if (call.tensor == nullptr || IsP2p(call.kind)) return std::nullopt;
  for (const auto list : {call.outputs, call.inputs}) {
    for (const Tensor& tensor : list) {
      if (tensor.numel() != call.tensor->numel()) return std::nullopt;
    }
  }
  const size_t tensors = HasLists(call.kind) ? static_cast<size_t>(size) + 1 : 1;
  return std::max<int64_t>(1, chunk_bytes / tensors / SizeOf(call.dtype()));
}

// Work on the lane's streams begins when the caller's tensors are ready.
absl::Status AwaitCaller(const CallerStream& caller, const StagingLane& lane) {
  for (const Stream& stream : {lane.to_host(), lane.from_host()}) {
    SYNCLINE_RETURN_IF_ERROR(caller.ready->EnqueueWait(stream));
    for (const auto& other : caller.others) SYNCLINE_RETURN_IF_ERROR(other->EnqueueWait(stream));
  }
  return absl::OkStatus();
}

// Carries out `call`, all of whose tensors are the host's.
absl::StatusOr<int> RunOnHost(Backend& host, const Collective& call, CallContext context) {
  context.caller = nullptr;
  context.collective = &call;
  return RunAndWait(host, call, context);
}

// The lane of a call, and what owns the call's tensors: what its copies use until they have ended.
struct InUse {
  std::shared_ptr<StagingLane> lane;
  std::shared_ptr<const void> call;
};

// Waits for the copies of a call that has failed; if the device stands still, for a short time.
void DrainOrKeep(device::DeviceRuntime& runtime, const std::shared_ptr<const InUse>& used) {
  if (used->lane->Drain(Deadline(kDrainTimeout)).ok()) return;
  for (const Stream& stream : {used->lane->to_host(), used->lane->from_host()}) {
    auto end = runtime.Record(stream);
    // A broken device does nothing any more.
    if (end.ok()) device::KeepUntil(*std::move(end), used).IgnoreError();
  }
}

// The handle of a call whose copies back are on the lane's stream. What they use stays until they
// have ended, also if the call ends before, at its deadline.
absl::StatusOr<std::shared_ptr<device::StreamHandle>> Enqueued(
    int source, const CallContext& context, device::DeviceRuntime& runtime,
    const std::shared_ptr<const InUse>& used) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<device::Event> end,
                            runtime.Record(used->lane->from_host()));
  SYNCLINE_RETURN_IF_ERROR(device::KeepUntil(end, used));
  std::vector<Device> others;
  for (const auto& other : context.caller->others) others.push_back(other->device());
  auto handle = std::make_shared<device::StreamHandle>(end, source, std::move(others));
  SYNCLINE_RETURN_IF_ERROR(device::StreamWatcher::Get().Watch(handle, context.deadline));
  return handle;
}

// What copies on streams of its own, and waits for them, cannot be part of a graph.
absl::Status CheckNotCaptured(const CallContext& context, device::DeviceRuntime& runtime) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_captured, runtime.IsCapturing(context.caller->stream));
  if (!is_captured) return absl::OkStatus();
  return UnsupportedError(
      "a call through memory of the host cannot be captured into a graph: use backend nccl");
}

}  // namespace

StagedBackend::StagedBackend(std::shared_ptr<Backend> host, const Capabilities& capabilities,
                             const BackendConfig& config, size_t chunk_bytes)
    : host_(std::move(host)),
      capabilities_(capabilities),
      rank_(config.rank),
      size_(config.size),
      chunk_bytes_(chunk_bytes) {}

absl::StatusOr<Completion> StagedBackend::Run(absl::Span<const Collective> collectives,
                                              const CallContext& context) {
  auto call = std::make_shared<std::vector<Collective>>(collectives.begin(), collectives.end());
  for (Collective& collective : *call) collective.Own();
  return RunInLane(context, std::move(call), [&](StagingLane& lane) {
    return collectives.size() == 1 ? RunInChunks(collectives[0], context, lane)
                                   : RunTogether(collectives, context, lane);
  });
}

absl::StatusOr<Completion> StagedBackend::RunPlan(const Plan& plan, const CallContext& context) {
  return RunInLane(context, std::make_shared<const Plan>(plan),
                   [&](StagingLane& lane) -> absl::StatusOr<int> {
                     SYNCLINE_RETURN_IF_ERROR(RunHostPlan(plan, context, lane));
                     return 0;
                   });
}

absl::StatusOr<Completion> StagedBackend::RunInLane(
    const CallContext& context, std::shared_ptr<const void> call,
    absl::FunctionRef<absl::StatusOr<int>(StagingLane&)> body) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_RETURN_IF_ERROR(CheckNotCaptured(context, *runtime));
  SYNCLINE_ASSIGN_OR_RETURN(auto lane, lanes_.Take(context.caller->stream.device));
  const auto used = std::make_shared<const InUse>(InUse{std::move(lane), std::move(call)});
  // Whichever way the call fails, exceptions included, its copies must not outlive its tensors.
  absl::Cleanup drain = [&] { DrainOrKeep(*runtime, used); };
  SYNCLINE_RETURN_IF_ERROR(AwaitCaller(*context.caller, *used->lane));
  SYNCLINE_ASSIGN_OR_RETURN(const int source, body(*used->lane));
  SYNCLINE_ASSIGN_OR_RETURN(auto handle, Enqueued(source, context, *runtime, used));
  std::move(drain).Cancel();
  return Completion(std::move(handle));
}

absl::StatusOr<int> StagedBackend::RunInChunks(const Collective& collective,
                                               const CallContext& context, StagingLane& lane) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  const int64_t total = collective.tensor != nullptr ? collective.tensor->numel() : 0;
  const std::optional<int64_t> step = ElementsPerChunk(collective, chunk_bytes_, size_);
  const bool is_cut = step.has_value() && *step < total;
  const size_t chunks = is_cut ? static_cast<size_t>((total + *step - 1) / *step) : 1;

  // A chunk between the copies from the device and those back to it.
  struct Chunk {
    std::optional<HostMirror> mirror;
    std::optional<Collective> call;
    std::shared_ptr<device::Event> is_here;
    StagingLane::Slot* slot;
  };
  std::vector<Chunk> under_way(2);
  const auto fetch = [&](size_t n) -> absl::Status {
    Range range;
    if (is_cut) {
      range.offset = static_cast<int64_t>(n) * *step;
      range.count = std::min(*step, total - range.offset);
    }
    Chunk& chunk = under_way[n % under_way.size()];
    SYNCLINE_ASSIGN_OR_RETURN(
        chunk.slot, Acquire(lane, n, HostMirror::BytesOf(collective, range), context.deadline));
    chunk.mirror.emplace(static_cast<std::byte*>(chunk.slot->memory.get()));
    chunk.call = chunk.mirror->Mirrored(collective, range, rank_);
    if (is_cut && collective.user_tensors == nullptr) {
      // Ranks whose tensors differ in size may have chunks that do not, so they compare the whole.
      chunk.call->user_name = Name(collective.kind);
      chunk.call->user_tensors = std::make_shared<const std::vector<Tensor>>(1, *collective.tensor);
    }
    SYNCLINE_RETURN_IF_ERROR(chunk.mirror->CopyIn(*runtime, lane.to_host()));
    SYNCLINE_ASSIGN_OR_RETURN(chunk.is_here, runtime->Record(lane.to_host()));
    return absl::OkStatus();
  };

  int source = 0;
  SYNCLINE_RETURN_IF_ERROR(fetch(0));
  for (size_t n = 0; n < chunks; ++n) {
    if (n + 1 < chunks) SYNCLINE_RETURN_IF_ERROR(fetch(n + 1));
    Chunk& chunk = under_way[n % under_way.size()];
    SYNCLINE_RETURN_IF_ERROR(Await(*chunk.is_here, context.deadline));
    SYNCLINE_ASSIGN_OR_RETURN(source, RunOnHost(*host_, *chunk.call, context));
    if (!chunk.mirror->has_output()) continue;
    SYNCLINE_RETURN_IF_ERROR(chunk.mirror->CopyOut(*runtime, lane.from_host()));
    SYNCLINE_ASSIGN_OR_RETURN(chunk.slot->last_use, runtime->Record(lane.from_host()));
  }
  return source;
}

absl::StatusOr<int> StagedBackend::RunTogether(absl::Span<const Collective> collectives,
                                               const CallContext& context, StagingLane& lane) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  size_t bytes = 0;
  for (const Collective& call : collectives) bytes += HostMirror::BytesOf(call, {});
  SYNCLINE_ASSIGN_OR_RETURN(StagingLane::Slot* const slot,
                            Acquire(lane, 0, bytes, context.deadline));
  HostMirror mirror(static_cast<std::byte*>(slot->memory.get()));
  std::vector<Collective> calls;
  for (const Collective& call : collectives) calls.push_back(mirror.Mirrored(call, {}, rank_));
  SYNCLINE_RETURN_IF_ERROR(mirror.CopyIn(*runtime, lane.to_host()));
  SYNCLINE_ASSIGN_OR_RETURN(const auto is_here, runtime->Record(lane.to_host()));
  SYNCLINE_RETURN_IF_ERROR(Await(*is_here, context.deadline));
  CallContext on_host = context;
  on_host.caller = nullptr;
  on_host.collective = nullptr;
  SYNCLINE_ASSIGN_OR_RETURN(const Completion completion, host_->Run(calls, on_host));
  SYNCLINE_RETURN_IF_ERROR(WaitFor(completion, calls.front(), context.deadline).status());
  SYNCLINE_RETURN_IF_ERROR(mirror.CopyOut(*runtime, lane.from_host()));
  SYNCLINE_ASSIGN_OR_RETURN(slot->last_use, runtime->Record(lane.from_host()));
  return 0;
}

absl::Status StagedBackend::RunHostPlan(const Plan& plan, const CallContext& context,
                                        StagingLane& lane) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  size_t bytes = plan.has_buffers ? 0 : HostMirror::BytesOf(plan.collective, {});
  for (const Plan::Load& load : plan.loads) {
    for (const Tensor& tensor : load.from) bytes += Aligned(tensor.nbytes());
  }
  for (const Plan::Store& store : plan.stores) bytes += Aligned(store.to.nbytes());
  SYNCLINE_ASSIGN_OR_RETURN(StagingLane::Slot* const slot,
                            Acquire(lane, 0, bytes, context.deadline));
  HostMirror mirror(static_cast<std::byte*>(slot->memory.get()));
  Plan on_host = plan;
  if (plan.has_buffers) {
    on_host.collective.OwnTensor(Tensor(nullptr, plan.collective.dtype(), {0}));
  } else {
    on_host.collective = mirror.Mirrored(plan.collective, {}, rank_);
  }
  for (Plan::Load& load : on_host.loads) {
    for (Tensor& tensor : load.from) tensor = mirror.Add(tensor, true, false);
  }
  for (Plan::Store& store : on_host.stores) store.to = mirror.Add(store.to, false, true);
  SYNCLINE_RETURN_IF_ERROR(mirror.CopyIn(*runtime, lane.to_host()));
  SYNCLINE_ASSIGN_OR_RETURN(const auto is_here, runtime->Record(lane.to_host()));
  SYNCLINE_RETURN_IF_ERROR(Await(*is_here, context.deadline));
  CallContext host_context = context;
  host_context.caller = nullptr;
  host_context.collective = nullptr;
  SYNCLINE_RETURN_IF_ERROR(group::RunPlan(on_host, host_context, *host_));
  SYNCLINE_RETURN_IF_ERROR(mirror.CopyOut(*runtime, lane.from_host()));
  SYNCLINE_ASSIGN_OR_RETURN(slot->last_use, runtime->Record(lane.from_host()));
  return absl::OkStatus();
}

void StagedBackend::Abort(const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (aborted_.ok()) aborted_ = cause;
}

absl::Status StagedBackend::aborted() const {
  absl::MutexLock lock(&mutex_);
  return aborted_;
}

absl::Status StagedBackend::Await(const device::Event& event, const Deadline& deadline) const {
  return AwaitEvent(event, deadline, [this] { return aborted(); });
}

absl::StatusOr<StagingLane::Slot*> StagedBackend::Acquire(StagingLane& lane, size_t n, size_t bytes,
                                                          const Deadline& deadline) const {
  return lane.Acquire(n, bytes, deadline, [this] { return aborted(); });
}

}  // namespace syncline::group
