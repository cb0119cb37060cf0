// Backend "shm": ranks of one host, as processes or threads, through memory that they share.
#include "backends/shm/shm_backend.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/comparison.h"
#include "backends/common/fd_passing.h"
#include "backends/common/giving_up.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/common/typed_backend.h"
#include "backends/shm/point_to_point.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_collectives.h"
#include "backends/shm/shm_group.h"
#include "core/base/asymmetric_fence.h"
#include "core/base/thread_bias.h"
#include "core/tensor/segment.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// One rank's part in a group. Thread-safe as Backend asks for. Owns the segment and all that works
// on it.
class ShmBackend final : public NodeBackend {
 public:
  ShmBackend(tensor::Segment segment, backends::PeerTable peers, backends::PeerProcesses processes,
             backends::Comparison comparison, CmaPolicy cma, NodeOptions node)
      : NodeBackend(peers.rank(), peers.size()),
        segment_(std::move(segment)),
        group_(segment_.data(), std::move(peers), std::move(processes), cma),
        collectives_(group_, comparison == backends::Comparison::kAtOnce),
        point_to_point_(group_, std::move(node)) {}

  ~ShmBackend() override { Abort(BackendError("the backend was destroyed")); }

  // On rank 0: passes the segment to all other ranks. An error fails the group, so that those ranks
  // that have the segment already get it too.
  absl::Status Serve(backends::FdServer& server, const Deadline& deadline, const PeerCheck& check) {
    const absl::Status status = server.Serve(segment_.descriptor(), group_.layout().size(),
                                             deadline, &group_.processes(), check);
    if (status.ok()) return status;
    const absl::Status failed = group_.failure_cell().Fail(
        RanksOf(status).empty() ? WithRanks(status, {own_number()}) : status);
    return IsInterrupted(status) ? status : failed;
  }

  // Returns once all ranks have reserved their memory and joined.
  absl::Status Join(const Deadline& deadline) {
    const absl::Status reserved = Reserve();
    if (!reserved.ok()) {
      return group_.failure_cell().Fail(
          WithRanks(Annotate(reserved, group_.peers().Describe(group_.rank())), {own_number()}));
    }
    SYNCLINE_RETURN_IF_ERROR(group_.Join(deadline));
    // Everyone has mapped it. Without the descriptor nobody else can be given it.
    segment_.CloseDescriptor();
    segment_.Populate();
    absl::MutexLock lock(&mutex_);
    has_joined_ = true;
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "shm"; }

  // What other ranks still read of a call that has failed they throw away: DirectAccess::Finish.
  bool MayKeepTensors() const override { return false; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return RunCollective([&] { return collectives_.Broadcast(tensor, root, context); });
  }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return RunCollective([&] { return collectives_.AllReduce(tensor, op, context); });
  }

  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override {
    return RunCollective([&] { return collectives_.Reduce(tensor, op, root, context); });
  }

  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    return RunCollective([&] { return collectives_.AllGather(outputs, input, context); });
  }

  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return RunCollective([&] { return collectives_.Gather(outputs, input, root, context); });
  }

  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return RunCollective([&] { return collectives_.Scatter(output, inputs, root, context); });
  }

  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override {
    return RunCollective([&] { return collectives_.ReduceScatter(output, inputs, op, context); });
  }

  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return RunCollective([&] { return collectives_.AllToAll(outputs, inputs, context); });
  }

  absl::Status Barrier(const CallContext& context) override {
    return RunCollective([&] { return collectives_.Barrier(context); });
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return RunMessage([&] { return point_to_point_.Send(tensor, dst, context); });
  }

  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    return RunMessage([&] { return point_to_point_.Recv(tensor, src, context); });
  }

  std::unique_ptr<backends::TwinReceive> NewReceive(int tag) override {
    return point_to_point_.NewReceive(tag);
  }

  absl::StatusOr<int> Complete(backends::TwinReceive& receive, const Tensor& tensor,
                               const CallContext& context) override {
    return RunMessage([&] { return point_to_point_.Complete(receive, tensor, context); });
  }

  bool AllMeet() const override { return collectives_.AllMeet(); }
  backends::Lifecycle::Awaited WhoIsAwaited() override { return group_.waiter().WhoIsAwaited(); }

  void Fail(const absl::Status& cause) override {
    {
      absl::MutexLock lock(&mutex_);
      if (has_joined_ && cause_.ok()) group_.failure_cell().Fail(cause).IgnoreError();
    }
    Abort(cause);
  }

  // Fails the group if a call of this rank is in flight, since its peers may wait for the rest of
  // it. Otherwise this rank only leaves: the others may go on as long as they do not need it.
  void Abort(const absl::Status& cause) override {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
    is_usable_.store(false);
    base::AsymmetricThreadFenceHeavy();  // Pairs with the light one in RunUnlessAborted.
    // Before it has joined, this rank makes no calls, and its region may not be touched.
    if (is_in_collective_.load() || (has_joined_ && messages_in_flight().value() > 0)) {
      group_.failure_cell().Fail(group_.LeftError(cause.message())).IgnoreError();
    } else {
      // A call that only gave may turn out not to have been that of the others. No call uses
      // collectives_ any more: is_in_collective_ was false after is_usable_ was. Where the group
      // has failed, what ranks wait for must not come true.
      const bool compares = has_joined_ && !group_.failure_cell().has_failed();
      const absl::Status mismatch = compares ? collectives_.Leave() : absl::OkStatus();
      if (!mismatch.ok()) group_.failure_cell().Fail(mismatch).IgnoreError();
      group_.Leave(cause.message());
    }
  }

 private:
  absl::StatusOr<int> RunBlocking(const CallContext& context) override {
    return Dispatch(*this, context);
  }
  // Of this rank, for errors.
  int own_number() const { return group_.peers().NumberOf(group_.rank()); }
  // Every call goes through one of these two, which tell Abort that it is in flight. There is one
  // collective at a time, so that a flag is enough.
  template <typename Body>
  absl::Status RunCollective(const Body& body) {
    is_in_collective_.store(true, std::memory_order_relaxed);
    const absl::Status status = RunUnlessAborted(body);
    is_in_collective_.store(false, std::memory_order_release);
    return status;
  }
  template <typename Body>
  auto RunMessage(const Body& body) -> decltype(body()) {
    messages_in_flight().Add(message_thread_, 1);
    auto outcome = RunUnlessAborted(body);
    messages_in_flight().Add(message_thread_, -1);
    return outcome;
  }
  // Where other ranks see it too.
  base::BiasedCounter& messages_in_flight() { return group_.own_region().messages_in_flight; }

  // Of `body`, an absl::Status or absl::StatusOr.
  template <typename Body>
  auto RunUnlessAborted(const Body& body) -> decltype(body()) {
    // Either Abort sees the call, or the call sees the abort.
    base::AsymmetricThreadFenceLight();
    const bool is_usable =
        is_usable_.load(std::memory_order_acquire) && !group_.failure_cell().has_failed();
    if (ABSL_PREDICT_FALSE(!is_usable)) return EndFailedCall(absl::OkStatus());
    // A call that has succeeded stays so, though the group may have failed meanwhile.
    auto outcome = body();
    if (ABSL_PREDICT_FALSE(!outcome.ok())) outcome = EndFailedCall(StatusOf(outcome));
    return outcome;
  }
  static const absl::Status& StatusOf(const absl::Status& outcome) { return outcome; }
  static const absl::Status& StatusOf(const absl::StatusOr<int>& outcome) {
    return outcome.status();
  }

  absl::Status Reserve() {
    for (const SegmentLayout::Extent& extent :
         SegmentLayout::OwnOf(group_.rank(), group_.layout().size())) {
      SYNCLINE_RETURN_IF_ERROR(segment_.Reserve(extent.offset, extent.size));
    }
    return absl::OkStatus();
  }

  // What a call returns that has ended with `status`, or was not made if that is OK: the cause for
  // which this rank became unusable, which is `status` if it is the first.
  absl::Status EndFailedCall(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) {
      // An interrupt belongs to one thread. Calls of other threads get what the other ranks get.
      cause_ = status.ok() || IsInterrupted(status) ? group_.failure_cell().failure() : status;
      is_usable_.store(false);
    }
    return IsInterrupted(status) ? status : cause_;
  }

  tensor::Segment segment_;
  ShmGroup group_;
  ShmCollectives collectives_;
  PointToPoint point_to_point_;
  std::atomic<bool> is_in_collective_{false};
  base::BiasedCounter::Owner message_thread_;
  std::atomic<bool> is_usable_{true};
  absl::Mutex mutex_;
  bool has_joined_ ABSL_GUARDED_BY(mutex_) = false;  // All regions may be read.
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // Why this rank is unusable; OK while it is not.
};

absl::Status CheckOneHost(const backends::PeerTable& peers) {
  for (int rank = 0; rank < peers.size(); ++rank) {
    if (peers.host_identity(rank) == peers.host_identity(peers.rank())) continue;
    return ArgumentError(absl::StrCat(peers.Describe(peers.rank()), " and ", peers.Describe(rank),
                                      " are not on one host, as ranks of ",
                                      "backend shm must be; backend auto serves any hosts"));
  }
  return absl::OkStatus();
}

// On rank 0, before the ranks know each other, so that a lack of memory is told to all at once.
absl::StatusOr<tensor::Segment> MakeSegment(int size) {
  SYNCLINE_ASSIGN_OR_RETURN(tensor::Segment segment,
                            tensor::Segment::Create(SegmentLayout::BytesFor(size)));
  const SegmentLayout::Extent common = SegmentLayout::CommonOf(size);
  SYNCLINE_RETURN_IF_ERROR(segment.Reserve(common.offset, common.size));
  return segment;
}

absl::StatusOr<tensor::Segment> ReceiveSegment(const BackendConfig& config,
                                               const backends::PeerTable& peers,
                                               backends::PeerProcesses& processes) {
  auto descriptor =
      backends::ReceiveFd(peers.payload(0).substr(1), config.rank, config.deadline, &processes);
  if (descriptor.ok())
    return tensor::Segment::Map(descriptor->release(), SegmentLayout::BytesFor(config.size));
  SYNCLINE_RETURN_IF_ERROR(peers.CheckAlive());  // Explains more, if rank 0 has died.
  return descriptor.status();
}

// The first byte of a rank's payload in the PeerTable is the mark of its Comparison. On rank 0 the
// endpoint of the FdServer follows.
absl::Status CheckComparisons(const backends::PeerTable& peers) {
  std::vector<backends::Comparison> of_ranks;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const std::string& payload = peers.payload(rank);
    of_ranks.push_back(backends::ComparisonOf(payload.empty() ? '\0' : payload[0]));
  }
  return backends::CheckAllCompareAtOnceOrNone(of_ranks);
}

std::string DescribeCma() {
  const absl::Status status = CheckCma();
  return status.ok()
             ? "ranks can read each other's memory (CMA), where that is faster"
             : absl::StrCat("ranks do not read each other's memory (CMA): ", status.message());
}

const BackendRegistry::Registration kShm("shm",
                                         {Capabilities::AllThroughHost(),
                                          [](const BackendConfig& config) {
                                            return MakeShm(config, backends::DefaultComparison());
                                          },
                                          /*check=*/nullptr, /*cuda_backend=*/{}, &DescribeCma});

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config,
                                                 backends::Comparison comparison) {
  return MakeNode(config, comparison, {});
}

absl::StatusOr<std::shared_ptr<NodeBackend>> MakeNode(const BackendConfig& config,
                                                      backends::Comparison comparison,
                                                      NodeOptions options) {
  const std::string mark(1, backends::MarkOf(comparison));
  absl::StatusOr<std::unique_ptr<backends::FdServer>> server;
  absl::StatusOr<tensor::Segment> segment = absl::UnavailableError("rank 0 has it");
  const absl::StatusOr<CmaPolicy> cma = ReadCmaPolicy();
  absl::StatusOr<std::string> payload = mark;  // Or why this rank cannot join.
  if (config.rank == 0) {
    segment = MakeSegment(config.size);
    server = backends::FdServer::Open();
    if (!segment.ok()) {
      payload = segment.status();
    } else if (!server.ok()) {
      payload = server.status();
    } else {
      payload = mark + (*server)->endpoint();
    }
  }
  if (!cma.ok()) payload = cma.status();
  SYNCLINE_ASSIGN_OR_RETURN(
      backends::PeerTable peers,
      backends::PeerTable::Join(*config.store, config.rank, config.size, payload, config.deadline,
                                config.check_peers));
  SYNCLINE_RETURN_IF_ERROR(CheckOneHost(peers));
  SYNCLINE_RETURN_IF_ERROR(CheckComparisons(peers));
  peers.Renumber(options.ranks);
  const backends::PeerTable members = peers;
  backends::GivingUp giving_up(config.store, members);
  // Rank 0 serves until all have come, so one that cannot says so. Of a larger group the check
  // comes first, as it tells that group's numbers.
  const auto check = [&]() -> absl::Status {
    if (config.check_peers) SYNCLINE_RETURN_IF_ERROR(config.check_peers());
    return giving_up.Check();
  };
  backends::PeerProcesses processes(peers);
  if (config.rank > 0) segment = ReceiveSegment(config, peers, processes);
  if (!segment.ok()) return giving_up.Tell(segment.status());
  auto backend =
      std::make_shared<ShmBackend>(*std::move(segment), std::move(peers), std::move(processes),
                                   comparison, *cma, std::move(options));
  if (config.rank == 0) {
    const absl::Status served = backend->Serve(**server, config.deadline, check);
    if (!served.ok()) return giving_up.Tell(served);
  }
  SYNCLINE_RETURN_IF_ERROR(backend->Join(config.deadline));
  return backend;
}

}  // namespace syncline::shm
