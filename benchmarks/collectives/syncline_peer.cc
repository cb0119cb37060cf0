// Syncline, as a C++ program uses it; --variant names the backend, and ends in "+shared" if the
// tensors are to be in shared memory. The rank of backend mpi is the one that mpirun gives.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "benchmarks/collectives/harness.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

namespace syncline::benchmarks {
namespace {

class SynclineSystem : public System {
 public:
  enum class Memory { kOwn, kShared };

  SynclineSystem(std::shared_ptr<World> world, Memory memory)
      : world_(std::move(world)), group_(*world_->group()), memory_(memory) {}

  std::string Describe() const override {
    return absl::StrCat("backend ", group_.backend(), ", C++",
                        memory_ == Memory::kShared ? ", tensors in shared memory" : "");
  }

  std::shared_ptr<void> Allocate(int64_t bytes) override {
    if (memory_ == Memory::kOwn) return System::Allocate(bytes);
    const Tensor tensor = EmptyShared(DType::kUInt8, {bytes}).value();
    std::memset(tensor.data(), 0, bytes);
    return {tensor.owner(), tensor.data()};
  }

  Function Prepare(const Call& call) override {
    const Tensor whole = Make(call.output, call.count);
    switch (call.operation) {
      case Operation::kAllReduce:
        return [this, whole] { return group_.AllReduce(whole); };
      case Operation::kBroadcast:
        return [this, whole] { return group_.Broadcast(whole, 0); };
      case Operation::kReduce:
        return [this, whole] { return group_.Reduce(whole, 0); };
      case Operation::kBarrier:
        return [this] { return group_.Barrier(); };
      case Operation::kSendRecv:
        return PingPong(Make(call.input, call.count), whole);
      default:
        return PrepareParts(call);
    }
  }

 private:
  using Tensors = std::vector<Tensor>;

  static Tensor Make(float* data, int64_t count) { return Tensor(data, DType::kFloat32, {count}); }

  Tensors Parts(float* data, int64_t part) const {
    Tensors parts;
    for (int rank = 0; rank < group_.size(); ++rank) {
      parts.push_back(Make(data + rank * part, part));
    }
    return parts;
  }

  Function PrepareParts(const Call& call) {
    const bool is_root = group_.rank() == 0;
    const Tensor part_in = Make(call.input, call.part), part_out = Make(call.output, call.part);
    const Tensor all_in = Make(call.input, call.count), all_out = Make(call.output, call.count);
    switch (call.operation) {
      case Operation::kAllGather:
        return [=] { return group_.AllGatherSingle(all_out, part_in); };
      case Operation::kGather: {
        const Tensors outputs = is_root ? Parts(call.output, call.part) : Tensors{};
        return [=] { return group_.Gather(outputs, part_in, 0); };
      }
      case Operation::kScatter: {
        const Tensors inputs = is_root ? Parts(call.input, call.part) : Tensors{};
        return [=] { return group_.Scatter(part_out, inputs, 0); };
      }
      case Operation::kReduceScatter:
        return [=] { return group_.ReduceScatterSingle(part_out, all_in); };
      case Operation::kAllToAll:
        return [=] { return group_.AllToAllSingle(all_out, all_in); };
      default:
        return nullptr;
    }
  }

  Function PingPong(const Tensor& input, const Tensor& output) {
    const int peer = group_.rank() ^ 1;
    if (peer >= group_.size()) return [] { return absl::OkStatus(); };
    if (group_.rank() < peer) {
      return [=] {
        const absl::Status status = group_.Send(input, peer);
        return status.ok() ? group_.Recv(output, peer).status() : status;
      };
    }
    return [=] {
      const absl::Status status = group_.Recv(output, peer).status();
      return status.ok() ? group_.Send(input, peer) : status;
    };
  }

  const std::shared_ptr<World> world_;
  ProcessGroup& group_;
  const Memory memory_;
};

int Main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  if (options.variant == "mpi") {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr || !absl::SimpleAtoi(rank, &options.rank)) {
      return ReportError(options, absl::InternalError("OMPI_COMM_WORLD_RANK is not set"));
    }
  }
  WorldOptions world;
  absl::string_view backend = options.variant;
  const bool shares = absl::ConsumeSuffix(&backend, "+shared");
  world.backend = std::string(backend);
  world.init_method = absl::StrCat("file://", options.folder, "/store");
  world.rank = options.rank;
  world.size = options.size;
  world.timeout = absl::Minutes(1);
  const auto joined = World::Init(world);
  if (!joined.ok()) return ReportError(options, joined.status());
  SynclineSystem system(*joined,
                        shares ? SynclineSystem::Memory::kShared : SynclineSystem::Memory::kOwn);
  const int status = Serve(options, system);
  (*joined)->Close();
  return status;
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
