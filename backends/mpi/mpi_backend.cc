// Backend "mpi": ranks that are processes of one MPI job, over whatever MPI connects them.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "backends/common/call_comparison.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/lifecycle.h"
#include "backends/common/message_backend.h"
#include "backends/common/message_collectives.h"
#include "backends/common/scratch_arena.h"
#include "backends/mpi/mpi_connections.h"
#include "backends/mpi/mpi_library.h"
#include "backends/mpi/mpi_p2p.h"
#include "backends/mpi/mpi_requests.h"
#include "backends/mpi/mpi_runtime.h"
#include "backends/mpi/signal_handlers.h"
#include "backends/mpi/thresholds.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

// One rank's end of a group. Threads, ownership and errors are those of Backend.
class MpiBackend final : public backends::MessageBackend {
 public:
  MpiBackend(std::unique_ptr<MpiConnections> connections, const BackendConfig& config)
      : backends::MessageBackend(config.rank, config.size),
        others_(backends::OtherRanks(config.rank, config.size)),
        mismatch_check_(config.mismatch_check),
        connections_(std::move(connections)),
        p2p_(*connections_),
        lifecycle_(*connections_, config.store),
        observer_(connections_->runtime().AddBeforeFinalize([this] { EndUse(); })) {}

  ~MpiBackend() override {
    connections_->runtime().RemoveBeforeFinalize(observer_);
    Abort(BackendError("the backend was destroyed"));
  }

  absl::string_view name() const override { return "mpi"; }

  // A comparison of the calls is a barrier already.
  absl::Status Barrier(const CallContext& context) override {
    return RunInUse({context, others_}, [&] {
      MpiTransport transport(*connections_, context, memory_);
      return Compare(transport, context);
    });
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return RunInUse({context, absl::MakeConstSpan(&dst, 1)},
                    [&] { return p2p_.Send(tensor, context); });
  }

  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    const absl::Span<const int> awaited =
        src == kAnySource ? absl::MakeConstSpan(others_) : absl::MakeConstSpan(&src, 1);
    int sender = src;
    const absl::Status status = RunInUse({context, awaited}, [&]() -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(sender, p2p_.Recv(tensor, context));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return sender;
  }

  void Abort(const absl::Status& cause) override { lifecycle_.Abort(cause); }

 private:
  // Lifecycle::Run, of a body that uses MPI, which EndUse waits for.
  absl::Status RunInUse(const backends::Lifecycle::OperationScope& scope,
                        backends::Lifecycle::Body body) {
    return lifecycle_.Run(scope, [&]() -> absl::Status {
      // Sequentially consistent, as in EndUse: either it sees this user, or this sees its flag.
      users_.fetch_add(1);
      const absl::Cleanup end = [&] { users_.fetch_sub(1); };
      if (is_finalizing_.load()) return FinalizedError();
      return body();
    });
  }

  static absl::Status FinalizedError() {
    return BackendError(
        "MPI_Finalize was called while this group of backend mpi was open: close the group before");
  }

  // MPI_Finalize has been called: ends the group, and returns when nothing of it uses MPI.
  void EndUse() {
    is_finalizing_.store(true);
    lifecycle_.Abort(FinalizedError());
    const Deadline deadline(kEndUseTimeout);
    while (users_.load() > 0 && !deadline.Expired()) absl::SleepFor(kSleepTime);
    connections_->Close(FinalizedError().message());
  }

  // Of the collective under way. Outlives this object if MPI may still use it.
  struct Memory {
    backends::FingerprintRecord sent, received;
    backends::ScratchArena scratch;
  };

  absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override {
    return RunInUse({context, others_}, [&]() -> absl::Status {
      MpiTransport transport(*connections_, context, memory_);
      if (mismatch_check_ == MismatchCheck::kOn) {
        SYNCLINE_RETURN_IF_ERROR(Compare(transport, context));
      }
      backends::MessageCollectives collectives(transport, kMessageThresholds, memory_->scratch);
      return algorithm(collectives);
    });
  }

  absl::Status Compare(MpiTransport& transport, const CallContext& context) {
    const auto run_rounds = [&](backends::FingerprintExchange& exchange) -> absl::Status {
      for (int round = 0; round < exchange.rounds(); ++round) {
        Memory& memory = *memory_;
        memory.sent = exchange.record();
        MpiRequests requests(*connections_, context);
        requests.Keep(memory_);
        requests.Receive(connections_->collectives(), exchange.from(round), kCollectiveTag,
                         &memory.received, sizeof(memory.received));
        requests.Send(connections_->collectives(), exchange.to(round), kCollectiveTag, &memory.sent,
                      sizeof(memory.sent));
        SYNCLINE_RETURN_IF_ERROR(requests.Wait());
        exchange.Merge(memory.received);
      }
      return absl::OkStatus();
    };
    return backends::CompareCalls(transport, context, run_rounds);
  }

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const std::unique_ptr<MpiConnections> connections_;
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  MpiP2p p2p_;
  backends::Lifecycle lifecycle_;
  std::atomic<bool> is_finalizing_{false};
  std::atomic<int> users_{0};  // Operations that use MPI.
  const MpiRuntime::ObserverId observer_;
};

absl::StatusOr<std::shared_ptr<Backend>> MakeMpi(const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(auto connections, MpiConnections::Connect(config));
  return std::make_shared<MpiBackend>(std::move(connections), config);
}

absl::Status CheckMpi() {
  const KeepSignalHandlers kept;
  return MpiLibrary::Get().status();
}

const BackendRegistry::Registration kMpi("mpi",
                                         {Capabilities::AllThroughHost(), &MakeMpi, &CheckMpi});

}  // namespace
}  // namespace syncline::mpi
