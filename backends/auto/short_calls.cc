#include "backends/auto/short_calls.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

void Copy(const Tensor& from, const Tensor& to) {
  if (from.numel() > 0) std::memcpy(to.data(), from.data(), from.nbytes());
}

int64_t Count(absl::Span<const Tensor> tensors) {
  int64_t count = 0;
  for (const Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

// Of an average this is all until it is complete.
ReduceOp Partial(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

// On leaders: `tensor`, which holds what the host's ranks have, becomes what all have.
absl::Status ReduceAmongLeaders(Passage& passage, const Tensor& tensor, ReduceOp op) {
  const Topology& topology = passage.topology();
  passage.Greet();
  std::vector<Tensor> theirs(topology.host_count());
  std::vector<const void*> terms(topology.host_count());
  for (int h = 0; h < topology.host_count(); ++h) {
    terms[h] = tensor.data();
    if (h == topology.host) continue;
    theirs[h] = passage.memory().Take(tensor.dtype(), tensor.numel());
    terms[h] = theirs[h].data();
    passage.Send(h, tensor);
    passage.Receive(h, theirs[h]);
  }
  SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
  SYNCLINE_RETURN_IF_ERROR(passage.AwaitAll());
  if (tensor.numel() == 0) return absl::OkStatus();
  Reduce(tensor.dtype(), Partial(op), tensor.data(), terms, tensor.numel());
  if (op == ReduceOp::kAvg) {
    Divide(tensor.dtype(), tensor.data(), topology.size(), tensor.numel());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ShortBroadcast(Passage& passage, const Tensor& tensor, int root) {
  const Topology& topology = passage.topology();
  const int source = topology.host_of[root], place = topology.place_of[root];
  const bool is_source = topology.host == source;
  const bool is_at_leader = place == 0;
  SYNCLINE_RETURN_IF_ERROR(is_source && !is_at_leader ? passage.Broadcast(tensor, place)
                                                      : passage.Barrier());
  if (passage.is_leader()) {
    passage.Greet();
    if (is_source) {
      passage.SendToAll(tensor);
    } else {
      passage.Receive(source, tensor);
    }
    SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
    SYNCLINE_RETURN_IF_ERROR(passage.AwaitAll());
  }
  return is_source && !is_at_leader ? passage.Barrier() : passage.Broadcast(tensor, 0);
}

absl::Status ShortAllReduce(Passage& passage, const Tensor& tensor, ReduceOp op) {
  SYNCLINE_RETURN_IF_ERROR(passage.Reduce(tensor, Partial(op), 0));
  if (passage.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(ReduceAmongLeaders(passage, tensor, op));
  }
  return passage.Broadcast(tensor, 0);
}

// All ranks but the root work on a copy, since their elements stay.
absl::Status ShortReduce(Passage& passage, const Tensor& tensor, ReduceOp op, int root) {
  const Topology& topology = passage.topology();
  const int goal = topology.host_of[root], place = topology.place_of[root];
  const bool is_root = topology.host == goal && topology.place == place;
  const Tensor copy = is_root ? tensor : passage.memory().Take(tensor.dtype(), tensor.numel());
  if (!is_root) Copy(tensor, copy);
  return ShortAllReduce(passage, copy, op);
}

absl::Status ShortAllGather(Passage& passage, absl::Span<const Tensor> outputs,
                            const Tensor& input) {
  const Topology& topology = passage.topology();
  const Tensor all = passage.memory().Take(input.dtype(), Count(outputs));
  std::vector<Tensor> hosts, here;  // The parts of `all`.
  int64_t at = 0;
  for (int h = 0; h < topology.host_count(); ++h) {
    const int64_t begin = at;
    for (int rank : topology.hosts[h]) {
      if (h == topology.host) here.push_back(all.Slice(at, outputs[rank].numel()));
      at += outputs[rank].numel();
    }
    hosts.push_back(all.Slice(begin, at - begin));
  }
  SYNCLINE_RETURN_IF_ERROR(passage.AllGather(here, input));
  if (passage.is_leader()) {
    passage.Greet();
    for (int h = 0; h < topology.host_count(); ++h) {
      if (h == topology.host) continue;
      passage.Send(h, hosts[topology.host]);
      passage.Receive(h, hosts[h]);
    }
    SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
    SYNCLINE_RETURN_IF_ERROR(passage.AwaitAll());
  }
  SYNCLINE_RETURN_IF_ERROR(passage.Broadcast(all, 0));
  at = 0;
  for (const std::vector<int>& ranks : topology.hosts) {
    for (int rank : ranks) {
      Copy(all.Slice(at, outputs[rank].numel()), outputs[rank]);
      at += outputs[rank].numel();
    }
  }
  return absl::OkStatus();
}

absl::Status ShortReduceScatter(Passage& passage, const Tensor& output,
                                absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = passage.topology();
  const int own = topology.here()[topology.place];
  const Tensor all = passage.memory().Take(output.dtype(), Count(inputs));
  int64_t at = 0, begin = 0;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    if (static_cast<int>(rank) == own) begin = at;
    Copy(inputs[rank], all.Slice(at, inputs[rank].numel()));
    at += inputs[rank].numel();
  }
  SYNCLINE_RETURN_IF_ERROR(ShortAllReduce(passage, all, op));
  Copy(all.Slice(begin, output.numel()), output);
  return absl::OkStatus();
}

}  // namespace syncline
