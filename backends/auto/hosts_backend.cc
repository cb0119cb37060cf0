#include "backends/auto/hosts_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/auto/lane.h"
#include "backends/gloo/collective.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/transfers.h"
#include "core/backend_registry.h"
#include "core/prefix_store.h"
#include "core/reduce_kernels.h"
#include "core/status.h"
#include "gloo/context.h"

namespace syncline {
namespace {

// What is smaller goes as gloo would send it: fewer steps are worth more than fewer bytes. With a
// root, gloo has few steps. Measured by //tests:auto_benchmark.
constexpr size_t kLeastBytes = 64 << 10;
constexpr size_t kLeastBytesWithRoot = 512 << 10;

// Smaller parts than this are not worth a lane of their own.
constexpr size_t kLeastPart = 16 << 10;

// When shared memory tells that a rank has gone, its connections are about to.
constexpr absl::Duration kDelay = absl::Milliseconds(100);

// Memory whose bytes nobody has written.
class Scratch {
 public:
  Scratch(DType dtype, int64_t count)
      : bytes_(new std::byte[count * SizeOf(dtype)]), tensor_(bytes_.get(), dtype, {count}) {}
  const Tensor& tensor() const { return tensor_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  Tensor tensor_;
};

size_t Bytes(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Of an average this is all until it is complete.
ReduceOp Partial(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

void Complete(const Tensor& tensor, ReduceOp op, size_t size) {
  if (op != ReduceOp::kAvg || tensor.numel() == 0) return;
  Divide(tensor.dtype(), tensor.data(), static_cast<int>(size), tensor.numel());
}

}  // namespace

// One collective, once its ranks have agreed on it: what it does within this host, all of whose
// ranks must do it, and between the hosts.
class HostsBackend::Passage {
 public:
  Passage(HostsBackend& backend, std::shared_ptr<gloo::Context> gloo, const CallContext& context)
      : backend_(backend),
        gloo_(std::move(gloo)),
        context_{context.sequence, context.deadline},
        gone_before_(backend.gone()) {}

  const Topology& topology() const { return backend_.topology_; }
  bool is_alone() const { return backend_.host_ == nullptr; }

  // How many ranks of each host carry a part of `bytes`.
  int PartsOf(size_t bytes) const {
    return static_cast<int>(std::clamp<size_t>(bytes / kLeastPart, 1, topology().lanes));
  }

  // Within the host.
  absl::Status Broadcast(const Tensor& tensor, int root) {
    if (is_alone()) return absl::OkStatus();
    return Judge(host().Broadcast(tensor, root, context_));
  }
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
    if (is_alone()) {
      if (input.numel() > 0 && outputs[0].data() != input.data()) {
        std::memcpy(outputs[0].data(), input.data(), input.nbytes());
      }
      return absl::OkStatus();
    }
    return Judge(host().AllGather(outputs, input, context_));
  }
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op) {
    if (is_alone()) return absl::OkStatus();
    return Judge(host().ReduceScatter(output, inputs, Partial(op), context_));
  }
  // Leaves the parts of all ranks at `root`, where they have places of their own.
  absl::Status Gather(absl::Span<const Tensor> parts, const Tensor& own, int root) {
    if (topology().place != root) {
      return own.numel() == 0 ? absl::OkStatus() : Judge(host().Send(own, root, context_));
    }
    for (int from = 0; from < static_cast<int>(parts.size()); ++from) {
      if (from == root || parts[from].numel() == 0) continue;
      SYNCLINE_RETURN_IF_ERROR(Judge(host().Recv(parts[from], from, context_).status()));
    }
    return absl::OkStatus();
  }

  // This rank's lane, where ranks are hosts.
  Collective Lane() const {
    return Collective(MakeLane(gloo_, topology().lane(), topology().host), context_.sequence);
  }
  // Messages between any ranks.
  Transfers Messages() const {
    return Transfers(*gloo_, kCollectiveSlot + static_cast<uint32_t>(context_.sequence));
  }

 private:
  Backend& host() { return *backend_.host_; }

  // Shared memory knows ranks by their places; so gloo is left to find out which are to blame.
  absl::Status Judge(const absl::Status& status) {
    if (status.ok()) return status;
    if (KindOf(status) == ErrorKind::kTimeout) {
      const std::string after = absl::FormatDuration(context_.deadline.timeout());
      return TimeoutError(absl::StrCat("not complete after ", after, backend_.StoppedHere()));
    }
    backend_.AwaitGoneMoreThan(gone_before_);
    return NetworkError("the connections were closed");
  }

  HostsBackend& backend_;
  const std::shared_ptr<gloo::Context> gloo_;
  const CallContext context_;
  const int gone_before_;
};

absl::StatusOr<std::shared_ptr<Backend>> HostsBackend::Make(const BackendConfig& config,
                                                            const Roster& roster,
                                                            const Topology& topology) {
  std::shared_ptr<HostsBackend> backend(new HostsBackend(roster, topology));
  SYNCLINE_RETURN_IF_ERROR(backend->Join(config));
  return backend;
}

absl::Status HostsBackend::Join(const BackendConfig& config) {
  BackendConfig between = config;
  between.store = std::make_shared<PrefixStore>("between hosts", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      gloo_, GlooBackend::Make(between, [this](const GlooBackend& gloo) { OnPeerGone(gloo); }));
  const absl::Status joined = JoinHost(config);
  if (!joined.ok()) gloo_->Abort(joined);
  SYNCLINE_RETURN_IF_ERROR(joined);
  CallContext context;
  context.deadline = config.deadline;
  context.form.name = "joining";
  return gloo_->Barrier(context);
}

absl::Status HostsBackend::JoinHost(const BackendConfig& config) {
  const std::vector<int>& here = topology_.here();
  if (here.size() == 1) return absl::OkStatus();
  BackendConfig inside = config;
  inside.store =
      std::make_shared<PrefixStore>(absl::StrCat("host of rank ", here[0]), config.store);
  inside.rank = topology_.place;
  inside.size = static_cast<int>(here.size());
  SYNCLINE_ASSIGN_OR_RETURN(auto host, BackendRegistry::Make("shm", inside));
  absl::MutexLock lock(&mutex_);
  host_ = std::move(host);
  if (has_lost_) host_->Abort(NetworkError("a rank was lost"));
  return absl::OkStatus();
}

HostsBackend::~HostsBackend() { Abort(BackendError("the backend was destroyed")); }

// Gloo first: whoever is woken by shared memory looks there for the reason.
void HostsBackend::Abort(const absl::Status& cause) {
  if (gloo_ != nullptr) gloo_->Abort(cause);
  absl::MutexLock lock(&mutex_);
  ++gone_;
  if (host_ != nullptr) host_->Abort(cause);
}

void HostsBackend::OnPeerGone(const GlooBackend& gloo) {
  absl::MutexLock lock(&mutex_);
  ++gone_;
  if (!gloo.has_lost_peer()) return;
  has_lost_ = true;
  if (host_ != nullptr) host_->Abort(NetworkError("a rank was lost"));
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

absl::Status HostsBackend::Run(const Call& call, const CallContext& context,
                               absl::FunctionRef<absl::Status(Passage&)> move) {
  const absl::Status status = gloo_->Perform(call, context, [&](const auto& gloo) {
    Passage passage(*this, gloo, context);
    return move(passage);
  });
  if (!status.ok() && host_ != nullptr) host_->Abort(status);
  return status;
}

absl::Status HostsBackend::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  if (tensor.nbytes() < kLeastBytesWithRoot) return gloo_->Broadcast(tensor, root, context);
  return Run(Call::Broadcast(tensor, root, context), context,
             [&](Passage& passage) -> absl::Status {
               const int source = topology_.host_of[root];
               const auto parts = topology_.Share(tensor, passage.PartsOf(tensor.nbytes()));
               const Tensor& own = parts[topology_.place];
               if (topology_.host == source) {
                 SYNCLINE_RETURN_IF_ERROR(passage.Broadcast(tensor, topology_.place_of[root]));
               }
               if (own.numel() > 0) passage.Lane().Broadcast(own, source);
               if (topology_.host == source) return absl::OkStatus();
               return passage.AllGather(parts, own);
             });
}

absl::Status HostsBackend::AllReduce(const Tensor& tensor, ReduceOp op,
                                     const CallContext& context) {
  if (tensor.nbytes() < kLeastBytes) return gloo_->AllReduce(tensor, op, context);
  return Run(Call::AllReduce(tensor, op, context), context, [&](Passage& passage) -> absl::Status {
    const auto parts = topology_.Share(tensor, passage.PartsOf(tensor.nbytes()));
    const Tensor& own = parts[topology_.place];
    SYNCLINE_RETURN_IF_ERROR(passage.ReduceScatter(own, parts, op));
    if (own.numel() > 0) {
      passage.Lane().AllReduce(own, Partial(op));
      Complete(own, op, topology_.host_of.size());
    }
    return passage.AllGather(parts, own);
  });
}

absl::Status HostsBackend::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                  const CallContext& context) {
  if (tensor.nbytes() < kLeastBytesWithRoot) return gloo_->Reduce(tensor, op, root, context);
  const int goal = topology_.host_of[root];
  const bool is_root = goal == topology_.host && topology_.place == topology_.place_of[root];
  return Run(Call::Reduce(tensor, op, root, context), context,
             [&](Passage& passage) -> absl::Status {
               const auto parts = topology_.Share(tensor, passage.PartsOf(tensor.nbytes()));
               const Tensor& mine = parts[topology_.place];
               const bool in_place = is_root || passage.is_alone();
               const Scratch scratch(tensor.dtype(), in_place ? 0 : mine.numel());
               const Tensor& own = in_place ? mine : scratch.tensor();
               SYNCLINE_RETURN_IF_ERROR(passage.ReduceScatter(own, parts, op));
               if (own.numel() > 0) passage.Lane().Reduce(own, Partial(op), goal);
               if (topology_.host != goal) return absl::OkStatus();
               Complete(own, op, topology_.host_of.size());
               return passage.Gather(parts, own, topology_.place_of[root]);
             });
}

// Of each host, the rank in lane l carries the parts of places l, l + lanes, ...: its own at once,
// while the host's ranks exchange theirs, and then the others; what one has received, all get.
absl::Status HostsBackend::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                     const CallContext& context) {
  if (Bytes(outputs) < kLeastBytes) return gloo_->AllGather(outputs, input, context);
  const auto body = [&](Passage& passage) -> absl::Status {
    Transfers messages = passage.Messages();
    const bool carries = topology_.place < topology_.lanes;
    if (carries) PostPart(topology_.place, outputs, input, messages);
    std::vector<Tensor> parts;
    for (int rank : topology_.here()) parts.push_back(outputs[rank]);
    SYNCLINE_RETURN_IF_ERROR(passage.AllGather(parts, input));
    for (int p = topology_.place + topology_.lanes; carries && p < topology_.most;
         p += topology_.lanes) {
      PostPart(p, outputs, input, messages);
    }
    messages.Wait();
    for (int distance = 1; distance < topology_.host_count(); ++distance) {
      const std::vector<int>& ranks = topology_.hosts[topology_.HostAt(distance)];
      for (size_t first = 0; first < ranks.size(); first += topology_.lanes) {
        parts.assign(topology_.here().size(), input.Slice(0, 0));
        const size_t count = std::min<size_t>(topology_.lanes, ranks.size() - first);
        for (size_t l = 0; l < count; ++l) parts[l] = outputs[ranks[first + l]];
        SYNCLINE_RETURN_IF_ERROR(passage.AllGather(parts, parts[topology_.place]));
      }
    }
    return absl::OkStatus();
  };
  return Run(Call::AllGather(outputs, input, context), context, body);
}

void HostsBackend::PostPart(size_t p, absl::Span<const Tensor> outputs, const Tensor& input,
                            Transfers& messages) const {
  const size_t place = topology_.place;
  const std::vector<int>& here = topology_.here();
  for (int distance = 1; distance < topology_.host_count(); ++distance) {
    const std::vector<int>& from = topology_.hosts[topology_.HostAt(-distance)];
    if (p < from.size()) {
      const Tensor& part = outputs[from[p]];
      messages.Receive(from[place], part.data(), part.nbytes());
    }
    const std::vector<int>& to = topology_.hosts[topology_.HostAt(distance)];
    if (p < here.size()) {
      const Tensor& part = p == place ? input : outputs[here[p]];
      messages.Send(to[place], part.data(), part.nbytes());
    }
  }
}

// This host's ranks combine what they have for each host, the rank at each place what is for the
// one at that place; and these then combine what the hosts have, on their lane.
absl::Status HostsBackend::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                         ReduceOp op, const CallContext& context) {
  if (Bytes(inputs) < kLeastBytes || !topology_.is_even()) {
    return gloo_->ReduceScatter(output, inputs, op, context);
  }
  const auto body = [&](Passage& passage) -> absl::Status {
    std::vector<Scratch> memory;
    std::vector<Tensor> partial;
    for (const std::vector<int>& ranks : topology_.hosts) {
      const bool is_here = &ranks == &topology_.here();
      memory.emplace_back(output.dtype(), is_here ? 0 : inputs[ranks[topology_.place]].numel());
      partial.push_back(is_here ? output : memory.back().tensor());
      std::vector<Tensor> parts;
      for (int rank : ranks) parts.push_back(inputs[rank]);
      SYNCLINE_RETURN_IF_ERROR(passage.ReduceScatter(partial.back(), parts, op));
    }
    passage.Lane().ReduceScatter(output, partial, Partial(op));
    Complete(output, op, inputs.size());
    return absl::OkStatus();
  };
  return Run(Call::ReduceScatter(output, inputs, op, context), context, body);
}

}  // namespace syncline
