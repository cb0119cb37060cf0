#include "tests/groups/process_group_conformance.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/operations.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

std::vector<Tensor> ListOf(absl::Span<const Tensor> tensors) {
  return {tensors.begin(), tensors.end()};
}

// CallGroup in the background.
ProcessGroup::StartedWork StartInGroup(const Collective& op, ProcessGroup& group) {
  switch (op.kind) {
    case OpKind::kBroadcast:
      return group.BroadcastAsync(*op.tensor, op.peer);
    case OpKind::kAllReduce:
      return group.AllReduceAsync(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kReduce:
      return group.ReduceAsync(*op.tensor, op.peer, op.reduce_op, {}, op.factor);
    case OpKind::kAllGather:
      return group.AllGatherAsync(ListOf(op.outputs), *op.tensor);
    case OpKind::kGather:
      return group.GatherAsync(ListOf(op.outputs), *op.tensor, op.peer);
    case OpKind::kScatter:
      return group.ScatterAsync(*op.tensor, ListOf(op.inputs), op.peer);
    case OpKind::kReduceScatter:
      return group.ReduceScatterAsync(*op.tensor, ListOf(op.inputs), op.reduce_op, {}, op.factor);
    case OpKind::kScan:
      return group.ScanAsync(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kExscan:
      return group.ExscanAsync(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kAllToAll:
      return group.AllToAllAsync(ListOf(op.outputs), ListOf(op.inputs));
    case OpKind::kBarrier:
      return group.BarrierAsync();
    case OpKind::kSend:
      return group.SendAsync(*op.tensor, op.peer);
    case OpKind::kRecv:
      return group.RecvAsync(*op.tensor, op.peer);
  }
  return absl::InternalError("unknown operation");
}

std::vector<Spec> SomeOfEachKind(int size) {
  std::vector<Spec> specs;
  for (OpKind kind : CollectiveKinds()) {
    for (DType dtype : {DType::kBool, DType::kBFloat16, DType::kComplex64}) {
      Spec spec = {kind, dtype, 33};
      spec.root = HasRoot(kind) ? size - 1 : 0;
      specs.push_back(spec);
      if (!HasSplits(kind)) continue;
      spec.uneven = {0, 4, 31};
      specs.push_back(spec);
    }
  }
  return specs;
}

}  // namespace

absl::Status CallGroup(const Collective& op, ProcessGroup& group) {
  switch (op.kind) {
    case OpKind::kBroadcast:
      return group.Broadcast(*op.tensor, op.peer);
    case OpKind::kAllReduce:
      return group.AllReduce(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kReduce:
      return group.Reduce(*op.tensor, op.peer, op.reduce_op, {}, op.factor);
    case OpKind::kAllGather:
      return group.AllGather(ListOf(op.outputs), *op.tensor);
    case OpKind::kGather:
      return group.Gather(ListOf(op.outputs), *op.tensor, op.peer);
    case OpKind::kScatter:
      return group.Scatter(*op.tensor, ListOf(op.inputs), op.peer);
    case OpKind::kReduceScatter:
      return group.ReduceScatter(*op.tensor, ListOf(op.inputs), op.reduce_op, {}, op.factor);
    case OpKind::kScan:
      return group.Scan(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kExscan:
      return group.Exscan(*op.tensor, op.reduce_op, {}, op.factor);
    case OpKind::kAllToAll:
      return group.AllToAll(ListOf(op.outputs), ListOf(op.inputs));
    case OpKind::kBarrier:
      return group.Barrier();
    case OpKind::kSend:
      return group.Send(*op.tensor, op.peer);
    case OpKind::kRecv:
      return group.Recv(*op.tensor, op.peer).status();
  }
  return absl::InternalError("unknown operation");
}

void GroupConformance::Run(const std::function<absl::Status(ProcessGroup& group)>& body) {
  for (const absl::Status& status : RunGroup(backend(), size(), body)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(GroupConformance, EveryOperationIsRight) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (const Spec& spec : SomeOfEachKind(size())) {
      const Collective operation = Build(spec, RankOf(group), size());
      SYNCLINE_RETURN_IF_ERROR(CallGroup(operation, group));
      SYNCLINE_RETURN_IF_ERROR(CheckDone(spec, operation, RankOf(group), size()));
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, EveryOperationIsRightWhenAllAreStartedAtOnce) {
  Run([](ProcessGroup& group) -> absl::Status {
    const std::vector<Spec> specs = SomeOfEachKind(size());
    std::vector<Collective> operations;
    std::vector<std::shared_ptr<Work>> works;
    for (const Spec& spec : specs) {
      operations.push_back(Build(spec, RankOf(group), size()));
      SYNCLINE_ASSIGN_OR_RETURN(works.emplace_back(), StartInGroup(operations.back(), group));
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      SYNCLINE_RETURN_IF_ERROR(works[i]->Wait(kGroupTimeout));
      SYNCLINE_RETURN_IF_ERROR(CheckDone(specs[i], operations[i], RankOf(group), size()));
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, ReceivesSayWhoSent) {
  if (size() == 1) return;
  Run([](ProcessGroup& group) -> absl::Status {
    const Tensor tensor = Bytes(DType::kInt16, 50, RankOf(group));
    if (group.rank() > 0) {
      SYNCLINE_RETURN_IF_ERROR(group.Send(tensor, 0, 4));
      return group.Send(tensor, 0, 5);
    }
    for (int i = 1; i < size(); ++i) {
      SYNCLINE_ASSIGN_OR_RETURN(const int source, group.Recv(tensor, kAnySource, 4));
      SYNCLINE_RETURN_IF_ERROR(Expect(
          SameBytes(tensor, Bytes(DType::kInt16, 50, static_cast<int>(source))), "recv", group));
      // In the background, from any rank.
      SYNCLINE_ASSIGN_OR_RETURN(const auto work, group.RecvAsync(tensor, kAnySource, 5));
      SYNCLINE_RETURN_IF_ERROR(work->Wait(kGroupTimeout));
      const int from = static_cast<int>(work->source_rank());
      SYNCLINE_RETURN_IF_ERROR(Expect(from > 0 && SameBytes(tensor, Bytes(DType::kInt16, 50, from)),
                                      "recv in the background", group));
    }
    return absl::OkStatus();
  });
}

}  // namespace syncline
