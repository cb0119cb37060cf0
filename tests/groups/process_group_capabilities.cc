// What a backend serves, found out through groups of it. See process_group_conformance.h.
#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"
#include "tests/support/operations.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

// Calls the operation on a group of two. A send meets its recv: rank 0 does what `kind` says.
absl::Status Try(const Spec& given, ProcessGroup& group) {
  Spec spec = given;
  if (IsP2p(spec.kind)) {
    const bool sends = (spec.kind == OpKind::kSend) == (group.rank() == 0);
    spec.kind = sends ? OpKind::kSend : OpKind::kRecv;
    spec.root = 1 - RankOf(group);
  }
  return CallGroup(Build(spec, RankOf(group), 2), group);
}

// What works with all its reductions; an error if something fails for another reason than not being
// supported, or only with some reductions.
absl::StatusOr<Capabilities> Find(ProcessGroup& group) {
  Capabilities works;
  for (OpKind kind : AllOpKinds()) {
    for (DType dtype : AllDTypes()) {
      std::set<bool> outcomes;
      for (ReduceOp op : ReductionsOf(kind, dtype)) {
        const absl::Status status = Try({kind, dtype, 3, op}, group);
        if (!status.ok() && KindOf(status) != ErrorKind::kUnsupported) return status;
        outcomes.insert(status.ok());
      }
      SYNCLINE_RETURN_IF_ERROR(Expect(outcomes.size() == 1, "only some reductions work", group));
      if (*outcomes.begin() == false) continue;
      works.ops.insert(kind);
      if (kind == OpKind::kBarrier) continue;
      (Reduces(kind) ? works.reduce_dtypes : works.move_dtypes).insert(dtype);
    }
  }
  return works;
}

void ExpectTruth(const std::string& backend) {
  const Capabilities declared = BackendRegistry::Find(backend)->capabilities;
  std::vector<Capabilities> found(2);
  for (const absl::Status& status : RunGroup(backend, 2, [&](ProcessGroup& group) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(found[RankOf(group)], Find(group));
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const Capabilities& works : found) {
    EXPECT_EQ(works.ops, declared.ops);
    EXPECT_EQ(works.move_dtypes, declared.move_dtypes);
    EXPECT_EQ(works.reduce_dtypes, declared.reduce_dtypes);
  }
}

}  // namespace

TEST_P(GroupConformance, WhatWorksIsWhatTheCapabilitiesSay) {
  if (size() == 2) ExpectTruth(backend());
}

TEST(CapabilitiesTest, WhatIsOutsideIsRefusedAndTheGroupGoesOn) {
  BackendRegistry::Entry entry = *BackendRegistry::Find("local");
  entry.capabilities.ops.erase(OpKind::kAllToAll);
  entry.capabilities.ops.erase(OpKind::kRecv);
  entry.capabilities.ops.erase(OpKind::kSend);
  entry.capabilities.move_dtypes.erase(DType::kComplex128);
  entry.capabilities.reduce_dtypes = {DType::kFloat32, DType::kInt8};
  ASSERT_TRUE(BackendRegistry::Add("narrow", entry).ok());
  ExpectTruth("narrow");
}

TEST_P(GroupConformance, FloatsOfEightBitsMoveAndEveryFormThatReducesThemSaysThatItDoesNot) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      const Tensor sent = Bytes(dtype, 257, 1);
      const Tensor a = Bytes(dtype, 257, RankOf(group) + 1), b = Bytes(dtype, 257, 7);
      const std::vector<Tensor> inputs(size(), b), pair = {a, b};
      const std::vector<Tensor> lists(2 * size() * 2, sent);
      const Tensor whole = Bytes(dtype, 257 * size(), 3);
      SYNCLINE_RETURN_IF_ERROR(group.BroadcastCoalesced({a, a.Slice(0, 0)}, 0));
      SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(a, sent), "the broadcast", group));
      for (const absl::Status& status : {
               group.AllReduce(a),
               group.Reduce(a, 0, ReduceOp::kMax),
               group.ReduceScatter(a, inputs, ReduceOp::kAvg),
               group.ReduceScatterSingle(a, whole),
               group.Scan(a),
               group.Exscan(a),
               group.AllReduce(a, ReduceOp::kPremulSum, {}, 0.5),
               group.AllReduceCoalesced(pair),
               group.ReduceScatterCoalesced({a}, inputs),
               group.AllReduceMulti(pair),
               group.ReduceMulti(pair, 0),
               group.ReduceScatterMulti(pair, lists),
           }) {
        SYNCLINE_RETURN_IF_ERROR(
            Expect(KindOf(status) == ErrorKind::kUnsupported &&
                       absl::StrContains(status.message(),
                                         absl::StrCat("backend ", backend(), " does not serve ")) &&
                       absl::EndsWith(status.message(), Name(dtype)),
                   absl::StrCat("not refused: ", status.ToString()), group));
      }
      SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(a, sent), "what was refused", group));
    }
    return group.Barrier();
  });
}

TEST_P(GroupConformance, ReductionsThatAreNotDefinedAreRefusedAndTheGroupGoesOn) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter, OpKind::kScan,
                        OpKind::kExscan}) {
      for (DType dtype : AllDTypes()) {
        const std::vector<ReduceOp> defined = ReductionsOf(kind, dtype);
        for (ReduceOp op : AllReduceOps()) {
          if (std::find(defined.begin(), defined.end(), op) != defined.end()) continue;
          const Spec spec = {kind, dtype, 3, op};
          const Collective operation = Build(spec, RankOf(group), size());
          const absl::Status status = CallGroup(operation, group);
          SYNCLINE_RETURN_IF_ERROR(Expect(
              !status.ok() && KindOf(status) == ErrorKind::kArgument &&
                  absl::StrContains(status.message(), Name(op)) &&
                  absl::StrContains(status.message(), Name(dtype)),
              absl::StrCat(spec.ToString(), " was not refused: ", status.ToString()), group));
          SYNCLINE_RETURN_IF_ERROR(CheckUntouched(spec, operation, RankOf(group), size()));
        }
      }
    }
    return group.Barrier();
  });
}

}  // namespace syncline
