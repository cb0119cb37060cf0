#include "core/group/blocking_backend.h"

#include <cstdint>
#include <map>
#include <new>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "core/base/thread.h"
#include "core/group/check_arguments.h"
#include "core/tensor/copy_bytes.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// A copy of `tensor`, multiplied by `factor`.
absl::StatusOr<Tensor> Scaled(const Tensor& tensor, double factor) {
  SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, Tensor::TryZeros(tensor.dtype(), tensor.shape()));
  tensor::CopyBytes(copy.data(), tensor.data(), tensor.nbytes());
  tensor::Scale(copy.dtype(), copy.data(), factor, copy.numel());
  return copy;
}

bool NeedsScaling(const Collective& collective) {
  return collective.factor != 1.0 && Reduces(collective.kind) &&
         collective.reduce_op == ReduceOp::kPremulSum;
}

}  // namespace

absl::StatusOr<Completion> BlockingBackend::Run(absl::Span<const Collective> collectives,
                                                const CallContext& context) {
  absl::StatusOr<int> outcome = 0;
  if (collectives.size() == 1) {
    outcome = RunAndWait(collectives[0], context);
  } else {
    outcome = RunEach(collectives, context);
  }
  if (!outcome.ok()) return outcome.status();
  return Completion(*outcome);
}

absl::StatusOr<int> BlockingBackend::RunAndWait(const Collective& collective,
                                                const CallContext& context) {
  if (ABSL_PREDICT_FALSE(NeedsScaling(collective))) return RunPremultiplied(collective, context);
  // ProcessGroup has set it already, which spares the copy of a context for each call.
  if (context.collective == &collective) return RunBlocking(context);
  return RunRecorded(collective, context);
}

// Collectives keep their order, on this thread. So do the messages of one direction, peer and tag,
// on a thread for each of these.
absl::StatusOr<int> BlockingBackend::RunEach(absl::Span<const Collective> collectives,
                                             const CallContext& context) {
  std::vector<absl::Status> outcomes(collectives.size());
  const auto run = [&](const std::vector<size_t>& indices) {
    for (const size_t i : indices) {
      try {
        outcomes[i] = RunAndWait(collectives[i], context).status();
      } catch (const std::bad_alloc&) {  // On a thread of ours it would end the process.
        outcomes[i] = BackendError("out of memory: no memory for the buffers of the operation");
        Abort(outcomes[i]);
      }
    }
  };
  std::vector<size_t> in_order;
  std::map<std::tuple<OpKind, int64_t, int64_t>, std::vector<size_t>> messages;
  for (size_t i = 0; i < collectives.size(); ++i) {
    const Collective& call = collectives[i];
    (IsP2p(call.kind) ? messages[{call.kind, call.peer, call.tag}] : in_order).push_back(i);
  }
  std::vector<std::thread> threads;
  absl::Status started;
  for (const auto& [channel, indices] : messages) {
    auto thread = base::StartThread("messages of a group of calls",
                                    [&run, &indices = indices] { run(indices); });
    if (!thread.ok()) {
      started = thread.status();
      break;
    }
    threads.push_back(*std::move(thread));
  }
  if (started.ok()) {
    run(in_order);
  } else {
    // Peers wait for the messages that could not be issued, and those that were wait for peers.
    Abort(started);
  }
  for (std::thread& thread : threads) thread.join();
  SYNCLINE_RETURN_IF_ERROR(started);
  for (const absl::Status& outcome : outcomes) SYNCLINE_RETURN_IF_ERROR(outcome);
  return 0;
}

// Multiplies copies, so that the caller's tensors are as they were if the call fails.
absl::StatusOr<int> BlockingBackend::RunPremultiplied(const Collective& collective,
                                                      const CallContext& context) {
  Collective scaled = collective;
  if (collective.kind == OpKind::kReduceScatter) {
    std::vector<Tensor> inputs;
    for (const Tensor& input : collective.inputs) {
      SYNCLINE_ASSIGN_OR_RETURN(inputs.emplace_back(), Scaled(input, collective.factor));
    }
    scaled.OwnInputs(std::move(inputs));
    return RunRecorded(scaled, context);
  }
  SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, Scaled(*collective.tensor, collective.factor));
  scaled.OwnTensor(std::move(copy));
  SYNCLINE_RETURN_IF_ERROR(RunRecorded(scaled, context).status());
  if (WritesTensor(collective, rank_) && collective.tensor->nbytes() > 0) {
    tensor::CopyBytes(collective.tensor->data(), scaled.tensor->data(),
                      collective.tensor->nbytes());
  }
  return 0;
}

absl::StatusOr<int> BlockingBackend::RunRecorded(const Collective& collective,
                                                 CallContext context) {
  context.collective = &collective;
  return RunBlocking(context);
}

}  // namespace syncline::group
