// TCP between hosts, by Gloo (https://github.com/facebookincubator/gloo).
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "backends/common/call.h"
#include "backends/common/failure_report.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/sigpipe.h"
#include "core/backend.h"
#include "core/reduce_kernels.h"
#include "core/status.h"
#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"

namespace syncline {
namespace {

using ContextPtr = std::shared_ptr<gloo::Context>;

// Outside of the slots of Gloo's collectives, whose highest byte is 1 to 8, and of the mesh's.
constexpr uint64_t kGatherSlot = uint64_t{0x10} << 56;
constexpr uint64_t kHeaderSlot = uint64_t{0x11} << 56;
constexpr uint64_t kP2pSlot = uint64_t{0x12} << 56;

uint32_t TagOf(const CallContext& context) { return static_cast<uint32_t>(context.sequence); }

void Broadcast(const ContextPtr& gloo, const Tensor& tensor, int root, uint32_t tag) {
  gloo::BroadcastOptions options(gloo);
  options.setOutput(tensor.data_as<uint8_t>(), tensor.nbytes());
  options.setRoot(root);
  options.setTag(tag);
  gloo::broadcast(options);
}

// Gloo's ring: each chunk is reduced on one rank, in the order of the ring, and then handed round;
// so the result is bitwise equal on all ranks and does not depend on timing.
template <typename Element>  // Of the right size; the kernels know the type.
void AllReduceElements(const ContextPtr& gloo, const Tensor& tensor, ReduceOp op, uint32_t tag) {
  const DType dtype = tensor.dtype();
  gloo::AllreduceOptions options(gloo);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(tensor.data_as<Element>(), tensor.numel());
  options.setTag(tag);
  options.setReduceFunction([=](void* out, const void* a, const void* b, size_t count) {
    if (out != a) std::memcpy(out, a, count * sizeof(Element));
    Accumulate(dtype, op, out, b, count);
  });
  gloo::allreduce(options);
  if (op == ReduceOp::kAvg) Divide(dtype, tensor.data(), gloo->size, tensor.numel());
}

void AllReduce(const ContextPtr& gloo, const Tensor& tensor, ReduceOp op, uint32_t tag) {
  switch (SizeOf(tensor.dtype())) {
    case 1:
      return AllReduceElements<uint8_t>(gloo, tensor, op, tag);
    case 2:
      return AllReduceElements<uint16_t>(gloo, tensor, op, tag);
    case 4:
      return AllReduceElements<uint32_t>(gloo, tensor, op, tag);
    default:
      return AllReduceElements<uint64_t>(gloo, tensor, op, tag);
  }
}

// Every rank sends to every other one: gloo::allgather would need one tensor for all outputs, or a
// copy of it. Rank r begins with its right neighbour, so that nobody is sent to by all at once.
void AllGather(const ContextPtr& gloo, absl::Span<const Tensor> outputs, const Tensor& input,
               uint32_t tag) {
  const uint64_t slot = kGatherSlot + tag;
  const int rank = gloo->rank, size = gloo->size;
  auto source = gloo->createUnboundBuffer(input.data(), input.nbytes());
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> arriving;
  for (int distance = 1; distance < size; ++distance) {
    const int from = (rank - distance + size) % size;
    arriving.push_back(gloo->createUnboundBuffer(outputs[from].data(), outputs[from].nbytes()));
    arriving.back()->recv(from, slot);
    source->send((rank + distance) % size, slot);
  }
  for (auto& buffer : arriving) buffer->waitRecv();
  for (int i = 1; i < size; ++i) source->waitSend();
}

// Goes before every message. Plain bytes.
struct Header {
  uint64_t sequence;
  int64_t count;
  uint64_t dtype;
};

// What rank `to` is told: its peer's call.
absl::StatusOr<Call> SentCall(const Header& header, int to, const Call& received) {
  if (header.dtype >= AllDTypes().size()) {
    return MismatchError(absl::StrCat("rank ", received.peer, " sent elements of an unknown type ",
                                      "(number ", header.dtype, "): do all ranks run the same ",
                                      "version of Syncline?"));
  }
  Call sent = received;
  sent.kind = OpKind::kSend;
  sent.sequence = header.sequence;
  sent.dtype = static_cast<DType>(header.dtype);
  sent.count = header.count;
  sent.peer = to;
  return sent;
}

// The elements follow the header on a slot of their own. Gloo lets them leave only once the
// receiver has posted a receive for them; so none are on their way that do not fit, which would
// end the receiver's process, and the sender learns of it, since the receiver breaks the group.
void Send(const ContextPtr& gloo, const Tensor& tensor, const Call& call) {
  Header header = {call.sequence, call.count, static_cast<uint64_t>(call.dtype)};
  auto announced = gloo->createUnboundBuffer(&header, sizeof(header));
  auto elements = gloo->createUnboundBuffer(tensor.data(), tensor.nbytes());
  announced->send(call.peer, kHeaderSlot + call.tag);
  elements->send(call.peer, kP2pSlot + call.tag);
  announced->waitSend();
  elements->waitSend();
}

absl::Status Recv(const ContextPtr& gloo, const Tensor& tensor, const Call& call) {
  Header header = {};
  auto announced = gloo->createUnboundBuffer(&header, sizeof(header));
  announced->recv(call.peer, kHeaderSlot + call.tag);
  announced->waitRecv();
  SYNCLINE_ASSIGN_OR_RETURN(const Call sent, SentCall(header, gloo->rank, call));
  SYNCLINE_RETURN_IF_ERROR(CheckFits(sent, call.peer, call, gloo->rank));
  auto elements = gloo->createUnboundBuffer(tensor.data(), tensor.nbytes());
  elements->recv(call.peer, kP2pSlot + call.tag);
  elements->waitRecv();
  return absl::OkStatus();
}

class GlooBackend final : public Backend {
 public:
  GlooBackend(std::unique_ptr<Mesh> mesh, std::shared_ptr<Store> store, int rank, int size)
      : rank_(rank),
        size_(size),
        mesh_(std::move(mesh)),
        reporter_(std::move(store), mesh_->roster()) {}

  ~GlooBackend() override { Abort(BackendError("the backend was destroyed")); }

  absl::string_view name() const override { return "gloo"; }

  const Capabilities& capabilities() const override {
    static const auto* const capabilities = new Capabilities(MakeCapabilities());
    return *capabilities;
  }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return Collective(Call::Broadcast(tensor, root, context), context, [&](const ContextPtr& gloo) {
      syncline::Broadcast(gloo, tensor, root, TagOf(context));
    });
  }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return Collective(Call::AllReduce(tensor, op, context), context, [&](const ContextPtr& gloo) {
      syncline::AllReduce(gloo, tensor, op, TagOf(context));
    });
  }

  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    const Tensor& own = outputs[rank_];
    if (own.data() != input.data() && input.nbytes() > 0) {
      std::memcpy(own.data(), input.data(), input.nbytes());
    }
    return Collective(Call::AllGather(input, context), context, [&](const ContextPtr& gloo) {
      syncline::AllGather(gloo, outputs, input, TagOf(context));
    });
  }

  absl::Status Barrier(const CallContext& context) override {
    if (size_ == 1) return status();
    return Run(Call::Barrier(context), context, Others(), [&](const ContextPtr& gloo) {
      gloo::BarrierOptions options(gloo);
      options.setTag(TagOf(context));
      gloo::barrier(options);
      return absl::OkStatus();
    });
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    const Call call = Call::Send(tensor, dst, context);
    return Run(call, context, {dst}, [&](const ContextPtr& gloo) {
      syncline::Send(gloo, tensor, call);
      return absl::OkStatus();
    });
  }

  absl::Status Recv(const Tensor& tensor, int src, const CallContext& context) override {
    const Call call = Call::Recv(tensor, src, context);
    return Run(call, context, {src},
               [&](const ContextPtr& gloo) { return syncline::Recv(gloo, tensor, call); });
  }

  void Abort(const absl::Status& cause) override {
    const ScopedSigpipeBlock no_sigpipe;
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = cause;
    if (calls_ > 0) {
      mesh_->Break();
    } else {
      mesh_->Leave(cause_.message());
    }
  }

 private:
  static Capabilities MakeCapabilities() {
    Capabilities capabilities;
    capabilities.ops = {OpKind::kBroadcast, OpKind::kAllReduce, OpKind::kAllGather,
                        OpKind::kBarrier,   OpKind::kSend,      OpKind::kRecv};
    for (DType dtype : AllDTypes()) {
      capabilities.move_dtypes.insert(dtype);
      if (IsInteger(dtype) || IsFloating(dtype)) capabilities.reduce_dtypes.insert(dtype);
    }
    return capabilities;
  }

  // One that moves nothing if there are no elements or no other ranks.
  absl::Status Collective(const Call& call, const CallContext& context,
                          absl::FunctionRef<void(const ContextPtr&)> body) {
    if (size_ == 1 || call.count == 0) return status();
    return Run(call, context, Others(), [&](const ContextPtr& gloo) {
      body(gloo);
      return absl::OkStatus();
    });
  }

  // The way of every operation. `awaited`: the ranks that it needs.
  absl::Status Run(const Call& call, const CallContext& context, std::vector<int> awaited,
                   absl::FunctionRef<absl::Status(const ContextPtr&)> body) {
    {
      absl::MutexLock lock(&mutex_);
      if (!cause_.ok()) return cause_;
      ++calls_;
    }
    const absl::Time start = absl::Now();
    const ScopedSigpipeBlock no_sigpipe;
    absl::Status status;
    status.Update(CatchGloo([&] { status = body(mesh_->ForOperation(context.deadline)); }));
    if (!status.ok()) {
      Failure failure;
      failure.operation = call.ToString();
      failure.awaited = std::move(awaited);
      failure.cause =
          context.deadline.Expired() && KindOf(status) == ErrorKind::kNetwork
              ? TimeoutError(absl::StrCat("not complete after ",
                                          absl::FormatDuration(context.deadline.timeout())))
              : status;
      failure.timeout = context.deadline.timeout();
      failure.elapsed = absl::Now() - start;
      status = Fail(std::move(failure));
    }
    absl::MutexLock lock(&mutex_);
    --calls_;
    return status;
  }

  // Of several operations that fail at once, the first finds the cause for all.
  absl::Status Fail(Failure failure) {
    mesh_->Break();
    bool aborted;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(+[](bool* explaining) { return !*explaining; }, &explaining_));
      if (told_) return cause_;
      aborted = !cause_.ok();
      if (aborted) failure.cause = cause_;
      explaining_ = true;
    }
    failure.left = mesh_->left();
    failure.lost = mesh_->lost();
    absl::Status verdict;
    if (aborted) {
      reporter_.Tell(failure);
    } else {
      verdict = reporter_.Explain(failure);
    }
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = verdict;
    explaining_ = false;
    told_ = true;
    return cause_;
  }

  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return cause_;
  }

  std::vector<int> Others() const {
    std::vector<int> others;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) others.push_back(rank);
    }
    return others;
  }

  const int rank_;
  const int size_;
  const std::unique_ptr<Mesh> mesh_;
  const FailureReporter reporter_;
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);       // Not OK: unusable, because.
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;            // Under way.
  bool explaining_ ABSL_GUARDED_BY(mutex_) = false;  // A failed call is finding the cause.
  bool told_ ABSL_GUARDED_BY(mutex_) = false;        // One has; the peers know.
};

absl::StatusOr<std::shared_ptr<Backend>> MakeGloo(const BackendConfig& config) {
  const ScopedSigpipeBlock no_sigpipe;  // Gloo's thread inherits it.
  Mesh::Options options;
  options.rank = config.rank;
  options.size = config.size;
  options.address = config.local_address.empty() ? "127.0.0.1" : config.local_address;
  SYNCLINE_ASSIGN_OR_RETURN(auto mesh, Mesh::Connect(*config.store, options, config.deadline));
  return std::make_shared<GlooBackend>(std::move(mesh), config.store, config.rank, config.size);
}

const BackendRegistry::Registration kGloo("gloo", &MakeGloo);

}  // namespace
}  // namespace syncline
