// Ranks of one host, through memory that they share.
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/common/roster.h"
#include "backends/shm/board.h"
#include "backends/shm/collectives.h"
#include "backends/shm/handover.h"
#include "backends/shm/letters.h"
#include "backends/shm/vigil.h"
#include "core/backend.h"
#include "core/backend_registry.h"
#include "core/segment.h"
#include "core/status.h"

namespace syncline {
namespace {

class ShmBackend final : public Backend {
 public:
  ShmBackend(Segment segment, Roster roster)
      : segment_(std::move(segment)),
        vigil_(segment_.data(), std::move(roster)),
        collectives_(vigil_),
        letters_(vigil_) {}

  ~ShmBackend() override { Abort(BackendError("the backend was destroyed")); }

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
      cause_ = status.ok() ? vigil_.verdict() : status;
      is_usable_.store(false);
    }
    return cause_;
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

absl::Status CheckOneHost(const Roster& roster) {
  for (int rank = 0; rank < roster.size(); ++rank) {
    if (roster.host_identity(rank) == roster.host_identity(roster.rank())) continue;
    return ArgumentError(absl::StrCat(roster.Describe(roster.rank()), " and ",
                                      roster.Describe(rank), " are not on one host, as ranks of ",
                                      "backend shm must be; use backend gloo"));
  }
  return absl::OkStatus();
}

// Rank 0 makes the memory; `point` is where it hands it over.
absl::StatusOr<Segment> Share(const BackendConfig& config, const Roster& roster,
                              HandoverPoint* point) {
  const size_t bytes = Board::BytesFor(config.size);
  if (config.rank > 0) {
    SYNCLINE_ASSIGN_OR_RETURN(const int descriptor,
                              ReceiveDescriptor(roster.payload(0), config.rank, config.deadline));
    return Segment::Map(descriptor, bytes);
  }
  SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Segment::Create(bytes));
  const Board::Range common = Board::CommonOf(config.size);
  SYNCLINE_RETURN_IF_ERROR(segment.Reserve(common.offset, common.size));
  if (point != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(point->Serve(segment.descriptor(), config.size, config.deadline));
  }
  return segment;
}

absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config) {
  std::unique_ptr<HandoverPoint> point;
  if (config.rank == 0 && config.size > 1) {
    SYNCLINE_ASSIGN_OR_RETURN(point, HandoverPoint::Open());
  }
  SYNCLINE_ASSIGN_OR_RETURN(Roster roster,
                            Roster::Join(*config.store, config.rank, config.size,
                                         point != nullptr ? point->ticket() : "", config.deadline));
  SYNCLINE_RETURN_IF_ERROR(CheckOneHost(roster));
  SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Share(config, roster, point.get()));
  auto backend = std::make_shared<ShmBackend>(std::move(segment), std::move(roster));
  SYNCLINE_RETURN_IF_ERROR(backend->Join(config.deadline));
  return backend;
}

const BackendRegistry::Registration kShm("shm", {Capabilities::All(), &MakeShm});

}  // namespace
}  // namespace syncline
