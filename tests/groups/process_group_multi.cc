// The forms over several tensors of each process, and premul_sum. See process_group_conformance.h.
#include <cstdint>
#include <vector>

#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using Tensors = std::vector<Tensor>;

constexpr int kEach = 2;  // Tensors of each process.
constexpr int64_t kCount = 100;
constexpr DType kMoved[] = {DType::kBool, DType::kInt16, DType::kComplex128};
constexpr DType kReduced[] = {DType::kInt32, DType::kUInt8, DType::kBFloat16, DType::kFloat64};
constexpr DType kScaled[] = {DType::kFloat16, DType::kBFloat16,  DType::kFloat32,
                             DType::kFloat64, DType::kComplex64, DType::kComplex128};

// The place of a process' i-th tensor among all.
int PlaceOf(const ProcessGroup& group, int i) { return RankOf(group) * kEach + i; }

int Places() { return GroupConformance::size() * kEach; }

// This process' tensors, as Numbers of their places.
Tensors OwnNumbers(DType dtype, const ProcessGroup& group) {
  Tensors tensors;
  for (int i = 0; i < kEach; ++i) tensors.push_back(Numbers(dtype, kCount, PlaceOf(group, i)));
  return tensors;
}

Tensors Blank(DType dtype, int count) {
  Tensors tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(Tensor::Zeros(dtype, {kCount}));
  return tensors;
}

double FactorOf(int rank) { return 0.5 + 0.375 * rank; }

std::vector<double> Factors() {
  std::vector<double> factors;
  for (int r = 0; r < GroupConformance::size(); ++r) factors.push_back(FactorOf(r));
  return factors;
}

// Of the numbers 0, 1, 2, ... times `stride`, plus `first`: one for each rank.
std::vector<int> Seeds(int stride, int first = 0) {
  std::vector<int> seeds;
  for (int r = 0; r < GroupConformance::size(); ++r) seeds.push_back(r * stride + first);
  return seeds;
}

}  // namespace

TEST_P(GroupConformance, BroadcastMultiCopiesOneTensorOfOneProcessToAll) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : kMoved) {
      for (int place = 0; place < Places(); ++place) {
        Tensors tensors;
        for (int i = 0; i < kEach; ++i) tensors.push_back(Bytes(dtype, kCount, PlaceOf(group, i)));
        SYNCLINE_RETURN_IF_ERROR(group.BroadcastMulti(tensors, place / kEach, place % kEach));
        for (const Tensor& tensor : tensors) {
          SYNCLINE_RETURN_IF_ERROR(
              Expect(SameBytes(tensor, Bytes(dtype, kCount, place)), "tensor", group));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, AllReduceMultiReducesTheTensorsOfAllProcesses) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : kReduced) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin}) {
        const Tensors tensors = OwnNumbers(dtype, group);
        SYNCLINE_RETURN_IF_ERROR(group.AllReduceMulti(tensors, op));
        for (const Tensor& tensor : tensors) {
          SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensor, op, Upto(Places())));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, ReduceMultiReducesToOneTensorOfOneProcess) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : kReduced) {
      for (int place = 0; place < Places(); ++place) {
        const Tensors tensors = OwnNumbers(dtype, group);
        SYNCLINE_RETURN_IF_ERROR(
            group.ReduceMulti(tensors, place / kEach, ReduceOp::kAvg, place % kEach));
        for (int i = 0; i < kEach; ++i) {
          if (PlaceOf(group, i) == place) {
            SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensors[i], ReduceOp::kAvg, Upto(Places())));
          } else {
            const Tensor own = Numbers(dtype, kCount, PlaceOf(group, i));
            SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(tensors[i], own), "another", group));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, AllGatherMultiGivesEveryTensorOfEveryProcessToAll) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : kMoved) {
      Tensors inputs;
      for (int i = 0; i < kEach; ++i) inputs.push_back(Bytes(dtype, kCount, PlaceOf(group, i)));
      const Tensors outputs = Blank(dtype, kEach * Places());
      SYNCLINE_RETURN_IF_ERROR(group.AllGatherMulti(outputs, inputs));
      for (int i = 0; i < kEach * Places(); ++i) {
        const Tensor want = Bytes(dtype, kCount, i % Places());
        SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(outputs[i], want), "output", group));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, ReduceScatterMultiReducesToEveryPlace) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (DType dtype : kReduced) {
      // What the tensor at place `from` adds to place `to`.
      auto seed = [](int from, int to) { return from * Places() + to; };
      Tensors inputs;
      for (int i = 0; i < kEach; ++i) {
        for (int to = 0; to < Places(); ++to) {
          inputs.push_back(Numbers(dtype, kCount, seed(PlaceOf(group, i), to)));
        }
      }
      const Tensors outputs = Blank(dtype, kEach);
      SYNCLINE_RETURN_IF_ERROR(group.ReduceScatterMulti(outputs, inputs, ReduceOp::kSum));
      for (int i = 0; i < kEach; ++i) {
        std::vector<int> seeds;
        for (int from = 0; from < Places(); ++from) seeds.push_back(seed(from, PlaceOf(group, i)));
        SYNCLINE_RETURN_IF_ERROR(CheckReduced(outputs[i], ReduceOp::kSum, seeds));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, PremulSumMultipliesEveryRanksElementsByItsOwnFactor) {
  constexpr ReduceOp kOp = ReduceOp::kPremulSum;
  Run([](ProcessGroup& group) -> absl::Status {
    const int rank = RankOf(group);
    for (DType dtype : kScaled) {
      Tensor tensor = Numbers(dtype, kCount, rank);
      SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor, kOp, {}, FactorOf(rank)));
      SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensor, kOp, Upto(size()), Factors()));

      tensor = Numbers(dtype, kCount, rank);
      SYNCLINE_RETURN_IF_ERROR(group.Reduce(tensor, size() - 1, kOp, {}, FactorOf(rank)));
      if (rank == size() - 1) {
        SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensor, kOp, Upto(size()), Factors()));
      } else {
        SYNCLINE_RETURN_IF_ERROR(
            Expect(SameBytes(tensor, Numbers(dtype, kCount, rank)), "a tensor of reduce", group));
      }

      Tensors inputs;
      for (int to = 0; to < size(); ++to) {
        inputs.push_back(Numbers(dtype, kCount, rank * size() + to));
      }
      SYNCLINE_RETURN_IF_ERROR(group.ReduceScatter(tensor, inputs, kOp, {}, FactorOf(rank)));
      SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensor, kOp, Seeds(size(), rank), Factors()));
      for (int to = 0; to < size(); ++to) {
        const Tensor own = Numbers(dtype, kCount, rank * size() + to);
        SYNCLINE_RETURN_IF_ERROR(Expect(SameBytes(inputs[to], own), "an input", group));
      }

      const Tensors several = {Numbers(dtype, kCount, rank), Numbers(dtype, 5, rank)};
      SYNCLINE_RETURN_IF_ERROR(group.AllReduceCoalesced(several, kOp, {}, FactorOf(rank)));
      for (const Tensor& one : several) {
        SYNCLINE_RETURN_IF_ERROR(CheckReduced(one, kOp, Upto(size()), Factors()));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace syncline
