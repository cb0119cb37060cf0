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
#include "backends/hierarchical/node_tree.h"
#include "backends/hierarchical/rail_history.h"
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
using hierarchical::RailHistory;
using hierarchical::RailSockets;

enum class Way { kLatency, kBandwidth, kAhead, kRelayed };
constexpr int kWays = 4;

constexpr int kCalls = 16;
constexpr int kAllToAll = 5;  // What half its number is.
constexpr int64_t kCount = 3;

// One rank on each of kRanks nodes, of which this is node 0.
const hierarchical::Topology& TopologyOfAll() {
  static const auto* const topology =
      new hierarchical::Topology(std::vector<std::string>{"a", "b", "c", "d"}, 0);
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

// Node 0 is the root, or passes on what goes between node 2 and node 1.
int RootOf(int call) { return call % 2 * 2; }

Collective CollectiveOf(int call, const Arguments& with) {
  const int root = RootOf(call);
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
    case kAllToAll:
      return Collective::AllToAll(with.outputs, with.inputs);
    case 6:
      return Collective::Gather(with.outputs, with.tensor, root);
    default:
      return Collective::Scatter(with.tensor, with.inputs, root);
  }
}

bool CanBe(Way way, const Collective& call) {
  if (way == Way::kAhead) return HasRoot(call.kind);
  if (way != Way::kRelayed) return true;
  return call.kind == OpKind::kAllReduce || call.kind == OpKind::kAllGather ||
         call.kind == OpKind::kReduceScatter;
}

// Whether this rank may not return OK if `peer` has called something else.
bool Needs(const Collective& call, Way way, int peer) {
  if (way == Way::kRelayed) return peer == 1 || peer == 2;  // Of which it hears of 3.
  if (way != Way::kAhead) return true;
  // From 4 nodes on the root gives along a binomial tree, and takes from each node up to 15.
  const hierarchical::NodeTree tree(TopologyOfAll(), call.peer,
                                    hierarchical::NodeTree::Shape::kBinomial);
  const bool root_gives = call.kind == OpKind::kBroadcast || call.kind == OpKind::kScatter;
  return root_gives ? !tree.is_root() && peer == tree.parent() : tree.is_root();
}

absl::Status Run(int number, HierarchicalCall& call, const Arguments& with, bool is_long) {
  using namespace hierarchical;
  const int root = RootOf(number);
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
    case kAllToAll:
      return (is_long ? LatencyAllToAllAlone(call, with.outputs, with.inputs, 4096)
                      : LatencyAllToAll(call, with.outputs, with.inputs, 4096))
          .status();
    case 6:
      return is_long ? BandwidthGather(call, with.outputs, with.tensor, root)
                     : LatencyGather(call, with.outputs, with.tensor, root);
    default:
      return is_long ? BandwidthScatter(call, with.tensor, with.inputs, root)
                     : LatencyScatter(call, with.tensor, with.inputs, root);
  }
}

CallContext ContextOf(const Collective& collective) {
  CallContext context;
  context.sequence = 1;
  context.collective = &collective;
  context.deadline = Deadline(absl::Minutes(1));
  return context;
}

std::string RecordOf(int number, Way way = Way::kLatency) {
  const Arguments arguments;
  const Collective collective = CollectiveOf(number, arguments);
  FingerprintRecord record = FingerprintRecord::Of(ContextOf(collective));
  if (way == Way::kAhead && CanBe(way, collective)) record.SetGoesAhead();
  if (way == Way::kRelayed && CanBe(way, collective)) record.SetRelays();
  return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  const int number = reader.Below(kCalls);
  const auto chosen = static_cast<Way>(reader.Below(kWays));
  const Arguments arguments;
  const Collective collective = CollectiveOf(number, arguments);
  const Way way = CanBe(chosen, collective) ? chosen : Way::kLatency;
  const hierarchical::Meeting meeting = way == Way::kAhead     ? hierarchical::Meeting::kNone
                                        : way == Way::kRelayed ? hierarchical::Meeting::kRelayed
                                                               : hierarchical::Meeting::kDirect;
  Connections connections;
  bool agree = true;
  const std::string correct = RecordOf(number);
  for (int peer = 1; peer < kRanks; ++peer) {
    const absl::string_view bytes = reader.Text();
    // What follows in a record is for all_to_all, and the sender's own.
    const size_t compared = sizeof(backends::CallFingerprint);
    if (bytes.substr(0, compared) != correct.substr(0, compared) && Needs(collective, way, peer)) {
      agree = false;
    }
    Write(connections.others[peer], bytes);
    shutdown(connections.others[peer].get(), SHUT_WR);  // So nothing is waited for.
  }
  std::vector<RailSockets::Member> members;
  for (int rank = 0; rank < kRanks; ++rank) {
    members.push_back({rank, absl::StrCat("rank ", rank), ""});
  }
  RailSockets rail(members, connections.TakeLists());
  backends::ScratchArena arena;
  const CallContext context = ContextOf(collective);
  RailHistory history(TopologyOfAll(), rail);
  HierarchicalCall call({TopologyOfAll(), nullptr, &rail, &history, arena, meeting}, context);
  const absl::Status status = Run(number, call, arguments, way == Way::kBandwidth);
  // all_to_all leaves sizes that differ to its caller.
  Require(!status.ok() || agree || number / 2 == kAllToAll, "a call that differs is an error");
  if (call.has_mismatch()) static_cast<void>(call.AbortPeers());
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char number = 0; number < kCalls; ++number) {
    const std::string data(kRanks * kCount * sizeof(float), '\1');
    for (const Way way : {Way::kLatency, Way::kBandwidth, Way::kAhead, Way::kRelayed}) {
      const std::string record = RecordOf(number, way);
      const std::string other = RecordOf((number + 2) % kCalls, way);
      const std::string call = {number, static_cast<char>(way)};
      const std::string whole = Text(record + data);
      seeds.push_back(call + whole + whole + whole);
      seeds.push_back(call + whole + Text(other + data) + whole);
      seeds.push_back(call + Text(record + data.substr(0, 5)) + Text(record) + whole);
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz
