// Gloo's own algorithms, through its C++ API, over TCP. --variant "bcube" takes that
// algorithm of all_reduce in place of the default, ring.
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/collectives/harness.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/alltoall.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/gather.h"
#include "gloo/math.h"
#include "gloo/reduce.h"
#include "gloo/reduce_scatter.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/scatter.h"
#include "gloo/transport/tcp/device.h"

namespace syncline::benchmarks {
namespace {

constexpr uint64_t kSendRecvSlot = 0x7000;  // Apart from those of the collectives.

using Reduction = void (*)(void*, const void*, const void*, size_t);
constexpr Reduction kSum = &gloo::sum<float>;

// Gloo reports by exceptions.
template <typename Body>
absl::Status Catch(const Body& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
}

template <typename Body>
System::Function Guarded(Body body) {
  return [body] { return Catch(body); };
}

class GlooSystem : public System {
 public:
  using Context = std::shared_ptr<gloo::Context>;

  GlooSystem(Context context, const std::string& variant)
      : context_(std::move(context)), uses_bcube_(variant == "bcube") {}

  std::string Describe() const override {
    return absl::StrCat("Gloo, C++; TCP, all_reduce ", uses_bcube_ ? "bcube" : "ring");
  }

  Function Prepare(const Call& call) override {
    if (call.operation == Operation::kAllReduce) return AllReduce(call);
    if (uses_bcube_) return nullptr;
    switch (call.operation) {
      case Operation::kBroadcast:
        return Broadcast(call);
      case Operation::kReduce:
        return Reduce(call);
      case Operation::kReduceScatter:
        return ReduceScatter(call);
      case Operation::kSendRecv:
        return PingPong(call);
      case Operation::kBarrier:
        return Guarded([context = context_] {
          gloo::BarrierOptions options(context);
          gloo::barrier(options);
        });
      default:
        return PrepareParts(call);
    }
  }

 private:
  Function AllReduce(const Call& call) const {
    const auto algorithm = uses_bcube_ ? gloo::AllreduceOptions::Algorithm::BCUBE
                                       : gloo::AllreduceOptions::Algorithm::RING;
    return Guarded([context = context_, call, algorithm] {
      gloo::AllreduceOptions options(context);
      options.setAlgorithm(algorithm);
      options.setOutput(call.output, call.count);
      options.setReduceFunction(kSum);
      gloo::allreduce(options);
    });
  }

  Function Broadcast(const Call& call) const {
    return Guarded([context = context_, call] {
      gloo::BroadcastOptions options(context);
      options.setOutput(call.output, call.count);
      options.setRoot(0);
      gloo::broadcast(options);
    });
  }

  Function Reduce(const Call& call) const {
    return Guarded([context = context_, call] {
      gloo::ReduceOptions options(context);
      options.setOutput(call.output, call.count);
      options.setReduceFunction(kSum);
      options.setRoot(0);
      gloo::reduce(options);
    });
  }

  // Reduces within the input, and leaves the result at its start.
  Function ReduceScatter(const Call& call) const {
    auto algorithm = std::make_shared<std::unique_ptr<gloo::Algorithm>>();
    const absl::Status made = Catch([&] {
      *algorithm = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, std::vector<float*>{call.input}, static_cast<int>(call.count),
          std::vector<int>(context_->size, static_cast<int>(call.part)));
    });
    if (!made.ok()) return [made] { return made; };
    return Guarded([algorithm, call] {
      (*algorithm)->run();
      std::memcpy(call.output, call.input, call.part * sizeof(float));
    });
  }

  Function PingPong(const Call& call) const {
    const int rank = context_->rank, peer = rank ^ 1;
    if (peer >= context_->size) return [] { return absl::OkStatus(); };
    const size_t bytes = call.count * sizeof(float);
    const auto send = [context = context_, call, bytes, peer] {
      auto buffer = context->createUnboundBuffer(call.input, bytes);
      buffer->send(peer, kSendRecvSlot);
      buffer->waitSend();
    };
    const auto receive = [context = context_, call, bytes, peer] {
      auto buffer = context->createUnboundBuffer(call.output, bytes);
      buffer->recv(peer, kSendRecvSlot);
      buffer->waitRecv();
    };
    if (rank < peer) {
      return Guarded([=] {
        send();
        receive();
      });
    }
    return Guarded([=] {
      receive();
      send();
    });
  }

  Function PrepareParts(const Call& call) const {
    const bool is_root = context_->rank == 0;
    switch (call.operation) {
      case Operation::kAllGather:
        return Guarded([context = context_, call] {
          gloo::AllgatherOptions options(context);
          options.setInput(call.input, call.part);
          options.setOutput(call.output, call.count);
          gloo::allgather(options);
        });
      case Operation::kGather:
        return Guarded([context = context_, call, is_root] {
          gloo::GatherOptions options(context);
          options.setInput(call.input, call.part);
          if (is_root) options.setOutput(call.output, call.count);
          options.setRoot(0);
          gloo::gather(options);
        });
      case Operation::kScatter:
        return Guarded([context = context_, call, is_root] {
          std::vector<float*> inputs;
          for (int rank = 0; is_root && rank < context->size; ++rank) {
            inputs.push_back(call.input + rank * call.part);
          }
          gloo::ScatterOptions options(context);
          if (is_root) options.setInputs(inputs, call.part);
          options.setOutput(call.output, call.part);
          options.setRoot(0);
          gloo::scatter(options);
        });
      case Operation::kAllToAll:
        return Guarded([context = context_, call] {
          gloo::AlltoallOptions options(context);
          options.setInput(call.input, call.count);
          options.setOutput(call.output, call.count);
          gloo::alltoall(options);
        });
      default:
        return nullptr;
    }
  }

  const Context context_;
  const bool uses_bcube_;
};

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
  const absl::Status connected = Catch([&] {
    context->setTimeout(std::chrono::minutes(1));
    auto store = std::make_shared<gloo::rendezvous::FileStore>(options.folder);
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
    context->connectFullMesh(store, device);
  });
  if (!connected.ok()) return ReportError(options, connected);
  GlooSystem system(context, options.variant);
  return Serve(options, system);
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
