// The forms made of the basic operations: on single tensors, coalesced, over several tensors of a
// process. See process_group_conformance.h.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using Tensors = std::vector<Tensor>;

constexpr DType kTypes[] = {DType::kBool,    DType::kUInt8,   DType::kInt32,
                            DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                            DType::kFloat32, DType::kFloat64, DType::kComplex64};
constexpr int64_t kCounts[] = {0, 1, 7, 1000};

// The parts one after another in one tensor.
Tensor Joined(const Tensors& parts, DType dtype) {
  int64_t count = 0;
  for (const Tensor& part : parts) count += part.numel();
  const Tensor joined = Tensor::Zeros(dtype, {count});
  char* at = joined.data_as<char>();
  for (const Tensor& part : parts) {
    at = std::copy_n(part.data_as<char>(), part.nbytes(), at);
  }
  return joined;
}

// Reductions that can be tried on any type: sum, and what the type allows besides.
std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> ops;
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    if (CheckReduction(dtype, op).ok()) ops.push_back(op);
  }
  return ops;
}

// seeds[r] = r * size + part.
std::vector<int> SeedsOf(int part, int size) {
  std::vector<int> seeds;
  for (int r = 0; r < size; ++r) seeds.push_back(r * size + part);
  return seeds;
}

// Runs `body` for every type and size.
absl::Status ForEach(const std::function<absl::Status(DType dtype, int64_t count)>& body) {
  for (DType dtype : kTypes) {
    for (int64_t count : kCounts) {
      SYNCLINE_RETURN_IF_ERROR(
          Annotate(body(dtype, count), absl::StrCat(Name(dtype), "[", count, "]")));
    }
  }
  return absl::OkStatus();
}

// ForEach with every reduction.
absl::Status ForEachReduction(
    const std::function<absl::Status(DType dtype, int64_t count, ReduceOp op)>& body) {
  return ForEach([&](DType dtype, int64_t count) -> absl::Status {
    for (ReduceOp op : OpsOf(dtype)) SYNCLINE_RETURN_IF_ERROR(body(dtype, count, op));
    return absl::OkStatus();
  });
}

}  // namespace

TEST_P(GroupConformance, AllGatherSinglePutsTheInputsOneAfterAnother) {
  Run([](ProcessGroup& group) {
    return ForEach([&](DType dtype, int64_t count) -> absl::Status {
      Tensors all;
      for (int r = 0; r < size(); ++r) all.push_back(Bytes(dtype, count, r));
      const Tensor output = Tensor::Zeros(dtype, {size() * count});
      SYNCLINE_RETURN_IF_ERROR(group.AllGatherSingle(output, all[RankOf(group)]));
      SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(output, Joined(all, dtype)), "output", group));
      // In place: the input is this rank's part of the output.
      const Tensor whole = Tensor::Zeros(dtype, {size() * count});
      const Tensor own = whole.Slice(group.rank() * count, count);
      std::copy_n(all[RankOf(group)].data_as<char>(), own.nbytes(), own.data_as<char>());
      SYNCLINE_RETURN_IF_ERROR(group.AllGatherSingle(whole, own));
      return Expect(SameBytes(whole, Joined(all, dtype)), "output in place", group);
    });
  });
}

TEST_P(GroupConformance, ReduceScatterSingleTakesThePartsOneAfterAnother) {
  Run([](ProcessGroup& group) {
    return ForEachReduction([&](DType dtype, int64_t count, ReduceOp op) -> absl::Status {
      Tensors parts;
      for (int p = 0; p < size(); ++p) {
        parts.push_back(Numbers(dtype, count, RankOf(group) * size() + p));
      }
      const Tensor output = Tensor::Zeros(dtype, {count});
      SYNCLINE_RETURN_IF_ERROR(group.ReduceScatterSingle(output, Joined(parts, dtype), op));
      return CheckReduced(output, op, SeedsOf(RankOf(group), size()));
    });
  });
}

TEST_P(GroupConformance, AllToAllSingleSplitsTheFirstDimension) {
  Run([](ProcessGroup& group) {
    return ForEach([&](DType dtype, int64_t count) -> absl::Status {
      const int rank = RankOf(group);
      // Rank i has (i + 2 j) % 3 rows for rank j, or one row for each.
      for (bool even : {true, false}) {
        auto rows = [&](int from, int to) -> int64_t { return even ? 1 : (from + 2 * to) % 3; };
        Tensors sent, expected;
        std::vector<int64_t> input_splits, output_splits;
        int64_t input_rows = 0, output_rows = 0;
        for (int r = 0; r < size(); ++r) {
          sent.push_back(Bytes(dtype, rows(rank, r) * count, 10 * rank + r));
          expected.push_back(Bytes(dtype, rows(r, rank) * count, 10 * r + rank));
          input_rows += input_splits.emplace_back(rows(rank, r));
          output_rows += output_splits.emplace_back(rows(r, rank));
        }
        const Tensor input = Joined(sent, dtype).Reshape({input_rows, count});
        const Tensor output = Tensor::Zeros(dtype, {output_rows, count});
        SYNCLINE_RETURN_IF_ERROR(
            even ? group.AllToAllSingle(output, input)
                 : group.AllToAllSingle(output, input, output_splits, input_splits));
        SYNCLINE_RETURN_IF_ERROR(
            Expect(SameBytes(output, Joined(expected, dtype)), "output", group));
      }
      return absl::OkStatus();
    });
  });
}

// Tensors of several types and sizes, which differ with `seed`.
Tensors Assorted(int seed) {
  Tensors tensors;
  for (DType dtype : kTypes) {
    tensors.push_back(Bytes(dtype, 3 * static_cast<int>(tensors.size()), seed));
  }
  return tensors;
}

TEST_P(GroupConformance, BroadcastCoalescedMixesTypesAndSizes) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (int root = 0; root < size(); ++root) {
      const Tensors tensors = Assorted(RankOf(group)), want = Assorted(root);
      SYNCLINE_RETURN_IF_ERROR(group.BroadcastCoalesced(tensors, root));
      for (size_t i = 0; i < want.size(); ++i) {
        SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(tensors[i], want[i]), "tensor", group));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, AllGatherCoalescedMixesTypesAndSizes) {
  Run([](ProcessGroup& group) -> absl::Status {
    const Tensors inputs = Assorted(RankOf(group));
    Tensors outputs;
    for (const Tensor& input : inputs) {
      for (int r = 0; r < size(); ++r) {
        outputs.push_back(Tensor::Zeros(input.dtype(), input.shape()));
      }
    }
    SYNCLINE_RETURN_IF_ERROR(group.AllGatherCoalesced(outputs, inputs));
    for (int r = 0; r < size(); ++r) {
      const Tensors want = Assorted(r);
      for (size_t i = 0; i < inputs.size(); ++i) {
        SYNCLINE_RETURN_IF_ERROR(
            Expect(SameBytes(outputs[i * size() + r], want[i]), "output", group));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, AllReduceCoalescedReducesEveryTensor) {
  Run([](ProcessGroup& group) {
    return ForEachReduction([&](DType dtype, int64_t count, ReduceOp op) -> absl::Status {
      const Tensors tensors = {Numbers(dtype, count, RankOf(group)),
                               Numbers(dtype, 2 * count + 1, RankOf(group))};
      SYNCLINE_RETURN_IF_ERROR(group.AllReduceCoalesced(tensors, op));
      SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensors[0], op, Upto(size())));
      return CheckReduced(tensors[1], op, Upto(size()));
    });
  });
}

TEST_P(GroupConformance, ReduceScatterCoalescedScattersEveryList) {
  Run([](ProcessGroup& group) {
    return ForEachReduction([&](DType dtype, int64_t count, ReduceOp op) -> absl::Status {
      const Tensors outputs = {Tensor::Zeros(dtype, {count}), Tensor::Zeros(dtype, {count + 3})};
      Tensors inputs;
      for (const Tensor& output : outputs) {
        for (int p = 0; p < size(); ++p) {
          inputs.push_back(Numbers(dtype, output.numel(), RankOf(group) * size() + p));
        }
      }
      SYNCLINE_RETURN_IF_ERROR(group.ReduceScatterCoalesced(outputs, inputs, op));
      SYNCLINE_RETURN_IF_ERROR(CheckReduced(outputs[0], op, SeedsOf(RankOf(group), size())));
      return CheckReduced(outputs[1], op, SeedsOf(RankOf(group), size()));
    });
  });
}

}  // namespace syncline
