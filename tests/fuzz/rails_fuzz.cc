// What the other nodes send on a rail: fingerprints of their calls, and data.
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/call_fingerprint.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/scratch_arena.h"
#include "backends/hierarchical/bandwidth_algorithms.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "backends/hierarchical/latency_algorithms.h"
#include "backends/hierarchical/rail_sockets.h"
#include "backends/hierarchical/topology.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/collective.h"
#include "syncline/deadline.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

using backends::FingerprintRecord;
using hierarchical::HierarchicalCall;
using hierarchical::RailSockets;

constexpr int kCalls = 12;
constexpr int64_t kCount = 3;

// One rank on each of kRanks nodes, of which this is node 0.
const hierarchical::Topology& TopologyOfAll() {
  static const auto* const topology =
      new hierarchical::Topology(std::vector<std::string>{"a", "b", "c"}, 0);
  return *topology;
}

// What one call uses. Tensors are of their own memory, so that a sanitizer sees what goes beyond.
struct Arguments {
  Arguments() {
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs.push_back(Tensor::Zeros(DType::kFloat32, {kCount}));
      outputs.push_back(Tensor::Zeros(DType::kFloat32, {kCount}));
    }
  }
  Tensor tensor = Tensor::Zeros(DType::kFloat32, {kCount});
  std::vector<Tensor> inputs, outputs;
};

Collective CollectiveOf(int call, const Arguments& with) {
  const int root = call % 2;
  switch (call / 2) {
    case 0:
      return Collective::Broadcast(with.tensor, root);
    case 1:
      return Collective::Reduce(with.tensor, ReduceOp::kSum, root);
    case 2:
      return Collective::AllReduce(with.tensor, ReduceOp::kSum);
    case 3:
      return Collective::AllGather(with.outputs, with.tensor);
    case 4:
      return Collective::ReduceScatter(with.tensor, with.inputs, ReduceOp::kMax);
    default:
      return Collective::AllToAll(with.outputs, with.inputs);
  }
}

absl::Status Run(int number, HierarchicalCall& call, const Arguments& with, bool is_long) {
  using namespace hierarchical;
  const int root = number % 2;
  switch (number / 2) {
    case 0:
      return is_long ? BandwidthBroadcast(call, with.tensor, root)
                     : LatencyBroadcast(call, with.tensor, root);
    case 1:
      return is_long ? BandwidthReduce(call, with.tensor, ReduceOp::kSum, root)
                     : LatencyReduce(call, with.tensor, ReduceOp::kSum, root);
    case 2:
      return is_long ? BandwidthAllReduce(call, with.tensor, ReduceOp::kSum)
                     : LatencyAllReduce(call, with.tensor, ReduceOp::kSum);
    case 3:
      return is_long ? BandwidthAllGather(call, with.outputs, with.tensor)
                     : LatencyAllGather(call, with.outputs, with.tensor);
    case 4:
      return is_long ? BandwidthReduceScatter(call, with.tensor, with.inputs, ReduceOp::kMax)
                     : LatencyReduceScatter(call, with.tensor, with.inputs, ReduceOp::kMax);
    default:
      return LatencyAllToAll(call, with.outputs, with.inputs, 4096).status();
  }
}

CallContext ContextOf(const Collective& collective) {
  CallContext context;
  context.sequence = 1;
  context.collective = &collective;
  context.deadline = Deadline(absl::Minutes(1));
  return context;
}

std::string RecordOf(int number) {
  const Arguments arguments;
  const Collective collective = CollectiveOf(number, arguments);
  const FingerprintRecord record = FingerprintRecord::Of(ContextOf(collective));
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  const int number = reader.Below(kCalls);
  const bool is_long = reader.Below(2) == 1;
  Connections connections;
  bool agree = true;
  const std::string correct = RecordOf(number);
  for (int peer = 1; peer < kRanks; ++peer) {
    const absl::string_view bytes = reader.Text();
    // What follows in a record is for all_to_all, and the sender's own.
    const size_t compared = sizeof(backends::CallFingerprint);
    if (bytes.substr(0, compared) != correct.substr(0, compared)) agree = false;
    Write(connections.others[peer], bytes);
    shutdown(connections.others[peer].get(), SHUT_WR);  // So nothing is waited for.
  }
  std::vector<RailSockets::Member> members;
  for (int rank = 0; rank < kRanks; ++rank) {
    members.push_back({rank, absl::StrCat("rank ", rank), ""});
  }
  RailSockets rail(members, connections.TakeLists());
  backends::ScratchArena arena;
  const Arguments arguments;
  const Collective collective = CollectiveOf(number, arguments);
  const CallContext context = ContextOf(collective);
  HierarchicalCall call({TopologyOfAll(), nullptr, &rail, arena}, context);
  const absl::Status status = Run(number, call, arguments, is_long);
  // all_to_all leaves sizes that differ to its caller.
  Require(!status.ok() || agree || number / 2 == 5, "a call that differs is an error");
  if (call.has_mismatch()) call.AbortPeers();
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char number = 0; number < kCalls; ++number) {
    const std::string record = RecordOf(number), other = RecordOf((number + 2) % kCalls);
    const std::string data(kRanks * kCount * sizeof(float), '\1');
    for (const char is_long : {'\0', '\1'}) {
      const std::string call = {number, is_long};
      seeds.push_back(call + Text(record + data) + Text(record + data));
      seeds.push_back(call + Text(record + data) + Text(other + data));
      seeds.push_back(call + Text(record + data.substr(0, 5)) + Text(record));
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz
