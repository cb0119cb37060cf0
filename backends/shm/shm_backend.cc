// Ranks of one host, through memory that they share.
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/common/peer_table.h"
#include "backends/shm/board.h"
#include "backends/shm/collectives.h"
#include "backends/shm/handover.h"
#include "backends/shm/letters.h"
#include "backends/shm/peer_watchdog.h"
#include "backends/shm/vigil.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "core/group/backend.h"
#include "core/group/backend_registry.h"
#include "core/tensor/segment.h"

namespace syncline {
namespace {

class ShmBackend final : public Backend {
 public:
  ShmBackend(Segment segment, PeerTable roster, PeerWatchdog watchdog)
      : segment_(std::move(segment)),
        vigil_(segment_.data(), std::move(roster), std::move(watchdog)),
        collectives_(vigil_),
        letters_(vigil_) {}

  ~ShmBackend() override { Abort(BackendError("the backend was destroyed")); }

  // On rank 0: hands the memory to all others. Those that have it learn of a failure.
  absl::Status Serve(HandoverPoint& point, const Deadline& deadline) {
    const absl::Status status =
        point.Serve(segment_.descriptor(), vigil_.board().size(), deadline, &vigil_.watchdog());
    return status.ok() ? status : vigil_.Condemn(status);
  }

  // Returns once all ranks are here, and have memory.
  absl::Status Join(const Deadline& deadline) {
    const absl::Status reserved = Reserve();
    if (!reserved.ok()) {
      return vigil_.Condemn(Annotate(reserved, vigil_.roster().Describe(vigil_.rank())));
    }
    SYNCLINE_RETURN_IF_ERROR(vigil_.Join(deadline));
    segment_.CloseDescriptor();
    segment_.Populate();
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "shm"; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return Run([&] { return collectives_.Broadcast(tensor, root, context); });
  }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return Run([&] { return collectives_.AllReduce(tensor, op, context); });
  }

  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override {
    return Run([&] { return collectives_.Reduce(tensor, op, root, context); });
  }

  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    return Run([&] { return collectives_.AllGather(outputs, input, context); });
  }

  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return Run([&] { return collectives_.Gather(outputs, input, root, context); });
  }

  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return Run([&] { return collectives_.Scatter(output, inputs, root, context); });
  }

  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override {
    return Run([&] { return collectives_.ReduceScatter(output, inputs, op, context); });
  }

  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return Run([&] { return collectives_.AllToAll(outputs, inputs, context); });
  }

  absl::Status Barrier(const CallContext& context) override {
    return Run([&] { return collectives_.Barrier(context); });
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return Run(
        [&] { return letters_.Send(tensor, Call::Send(tensor, dst, context), context.deadline); });
  }

  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    int source = src;
    const absl::Status status = Run([&]() -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(
          source, letters_.Recv(tensor, Call::Recv(tensor, src, context), context.deadline));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return source;
  }

  // In a call this breaks the group; else this rank leaves it.
  void Abort(const absl::Status& cause) override {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
    is_usable_.store(false);
    if (under_way_.load() > 0) {
      vigil_.Condemn(vigil_.Departed(cause.message())).IgnoreError();
    } else {
      vigil_.Leave(cause.message());
    }
  }

 private:
  // The way of every call.
  template <typename Body>
  absl::Status Run(const Body& body) {
    under_way_.fetch_add(1);  // Before the check, so that Abort sees it or is seen.
    const bool is_usable = is_usable_.load() && !vigil_.is_condemned();
    absl::Status status;
    if (ABSL_PREDICT_TRUE(is_usable)) status = body();  // What it has done counts, come what may.
    if (ABSL_PREDICT_FALSE(!is_usable || !status.ok())) status = Failed(status);
    under_way_.fetch_sub(1);
    return status;
  }

  absl::Status Reserve() {
    for (const Board::Range& range : Board::OwnOf(vigil_.rank(), vigil_.board().size())) {
      SYNCLINE_RETURN_IF_ERROR(segment_.Reserve(range.offset, range.size));
    }
    return absl::OkStatus();
  }

  absl::Status Failed(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) {
      // Calls of other threads, which nobody has interrupted, get what the other ranks do.
      cause_ = status.ok() || IsInterrupted(status) ? vigil_.verdict() : status;
      is_usable_.store(false);
    }
    return IsInterrupted(status) ? status : cause_;
  }

  Segment segment_;
  Vigil vigil_;
  HostCollectives collectives_;
  Letters letters_;
  std::atomic<int> under_way_{0};
  std::atomic<bool> is_usable_{true};
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // Not OK: unusable, because.
};

absl::Status CheckOneHost(const PeerTable& roster) {
  for (int rank = 0; rank < roster.size(); ++rank) {
    if (roster.host_identity(rank) == roster.host_identity(roster.rank())) continue;
    return ArgumentError(absl::StrCat(roster.Describe(roster.rank()), " and ",
                                      roster.Describe(rank), " are not on one host, as ranks of ",
                                      "backend shm must be; use backend gloo"));
  }
  return absl::OkStatus();
}

// On rank 0, before the ranks know each other: if there is no memory, all learn of it at once.
absl::StatusOr<Segment> MakeSegment(int size) {
  SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Segment::Create(Board::BytesFor(size)));
  const Board::Range common = Board::CommonOf(size);
  SYNCLINE_RETURN_IF_ERROR(segment.Reserve(common.offset, common.size));
  return segment;
}

absl::StatusOr<Segment> ReceiveSegment(const BackendConfig& config, const PeerTable& roster,
                                       PeerWatchdog& watchdog) {
  auto descriptor = ReceiveDescriptor(roster.payload(0), config.rank, config.deadline, &watchdog);
  if (descriptor.ok()) return Segment::Map(descriptor->release(), Board::BytesFor(config.size));
  SYNCLINE_RETURN_IF_ERROR(roster.CheckAlive());  // The cause, mostly.
  return descriptor.status();
}

absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config) {
  absl::StatusOr<std::unique_ptr<HandoverPoint>> point;
  absl::StatusOr<Segment> segment = absl::UnavailableError("rank 0 has it");
  absl::StatusOr<std::string> payload = "";  // Of rank 0: where it hands the memory over.
  if (config.rank == 0) {
    segment = MakeSegment(config.size);
    point = HandoverPoint::Open();
    if (!segment.ok()) {
      payload = segment.status();
    } else if (!point.ok()) {
      payload = point.status();
    } else {
      payload = (*point)->ticket();
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(PeerTable roster,
                            PeerTable::Join(*config.store, config.rank, config.size, payload,
                                            config.deadline, config.check_peers));
  SYNCLINE_RETURN_IF_ERROR(CheckOneHost(roster));
  PeerWatchdog watchdog(roster);
  if (config.rank > 0) segment = ReceiveSegment(config, roster, watchdog);
  SYNCLINE_RETURN_IF_ERROR(segment.status());
  auto backend =
      std::make_shared<ShmBackend>(*std::move(segment), std::move(roster), std::move(watchdog));
  if (config.rank == 0) SYNCLINE_RETURN_IF_ERROR(backend->Serve(**point, config.deadline));
  SYNCLINE_RETURN_IF_ERROR(backend->Join(config.deadline));
  return backend;
}

const BackendRegistry::Registration kShm("shm", {Capabilities::All(), &MakeShm});

}  // namespace
}  // namespace syncline
