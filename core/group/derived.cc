#include "core/group/derived.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

int64_t TotalBytes(const Tensors& tensors) {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

int64_t TotalCount(const Tensors& tensors) {
  return TotalBytes(tensors) / static_cast<int64_t>(SizeOf(tensors[0].dtype()));
}

// tensors[i * stride + place] for all i.
Tensors Column(const Tensors& tensors, size_t stride, size_t place) {
  Tensors column;
  for (size_t i = place; i < tensors.size(); i += stride) column.push_back(tensors[i]);
  return column;
}

// Adds a call on the user's tensors to those that a plan stands for.
// Those of the CPU are packed in any case.
void AddSeparate(Plan& plan, Collective call) {
  if (call.device() == DeviceType::kCpu) return;
  call.Own();
  plan.separate.push_back(std::move(call));
}

// All but tensors[index].
Tensors Without(const Tensors& tensors, size_t index) {
  Tensors others = tensors;
  others.erase(others.begin() + static_cast<ptrdiff_t>(index));
  return others;
}

}  // namespace

absl::StatusOr<Plan> BroadcastCoalesced(const Tensors& tensors, int root, int rank) {
  const bool is_root = rank == root;
  SYNCLINE_RETURN_IF_ERROR(
      CheckEach(tensors, "tensors", is_root ? Access::kReadOnly : Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckOneDevice(tensors, "tensors"));
  if (!is_root) SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(tensors));
  Plan plan(Collective::Broadcast(tensors[0], root), DType::kUInt8, TotalBytes(tensors), 0,
            tensors);
  if (is_root) {
    plan.LoadPacked(tensors);
  } else {
    plan.StorePacked(Plan::Location::kTensor, tensors);
  }
  for (const Tensor& tensor : tensors) AddSeparate(plan, Collective::Broadcast(tensor, root));
  return plan;
}

absl::StatusOr<Plan> AllReduceCoalesced(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckOneDevice(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(tensors));
  Plan plan(Collective::AllReduce(tensors[0], op, factor), tensors[0].dtype(), TotalCount(tensors),
            0, tensors);
  plan.LoadPacked(tensors);
  plan.StorePacked(Plan::Location::kTensor, tensors);
  for (const Tensor& tensor : tensors) {
    AddSeparate(plan, Collective::AllReduce(tensor, op, factor));
  }
  return plan;
}

absl::StatusOr<Plan> AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs, int rank,
                                        int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckOneDevice(inputs, "inputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", size));
  SYNCLINE_RETURN_IF_ERROR(
      tensor::CheckApart(outputs, inputs, [=](size_t i) { return i * size + rank; }));
  Plan plan(Collective::AllGather({}, inputs[0]), DType::kUInt8, TotalBytes(inputs), size, inputs);
  plan.LoadPacked(inputs);
  for (int r = 0; r < size; ++r) plan.StorePacked(r, Column(outputs, size, r));
  for (size_t i = 0; i < inputs.size(); ++i) {
    AddSeparate(plan, Collective::AllGather(absl::MakeConstSpan(outputs).subspan(i * size, size),
                                            inputs[i]));
  }
  return plan;
}

absl::StatusOr<Plan> ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                            ReduceOp op, double factor, int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckOneDevice(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", size));
  const auto twin = [=](size_t i) {
    return i % size == static_cast<size_t>(rank) ? i / size : tensor::kNoTwin;
  };
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(outputs, inputs, twin));
  Plan plan(Collective::ReduceScatter(outputs[0], {}, op, factor), outputs[0].dtype(),
            TotalCount(outputs), size, outputs);
  for (int r = 0; r < size; ++r) plan.LoadPacked(Column(inputs, size, r), r);
  plan.StorePacked(Plan::Location::kTensor, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    AddSeparate(plan,
                Collective::ReduceScatter(
                    outputs[i], absl::MakeConstSpan(inputs).subspan(i * size, size), op, factor));
  }
  return plan;
}

// Broadcasts one tensor of the root, and each rank copies it to its others.
absl::StatusOr<Plan> BroadcastMulti(const Tensors& tensors, int root, int64_t root_tensor,
                                    int rank) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckRootTensor(root_tensor, tensors));
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(tensors));
  const size_t moved = rank == root ? static_cast<size_t>(root_tensor) : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (rank == root && i == moved) continue;
    SYNCLINE_RETURN_IF_ERROR(tensor::CheckWritable(tensors[i], absl::StrCat("tensors[", i, "]")));
  }
  if (tensors[0].device().type == DeviceType::kCpu) {
    Plan plan(Collective::Broadcast(tensors[moved], root), tensors);
    for (const Tensor& tensor : Without(tensors, moved)) plan.stores.push_back({{}, tensor});
    return plan;
  }
  // On each rank by the device of the first tensor: ranks communicate between these.
  Plan plan(Collective::Broadcast(tensors[0], root), tensors[0].dtype(), tensors[0].numel(), 0,
            tensors);
  if (rank == root) plan.loads.push_back({{tensors[moved]}, {}});
  for (const Tensor& tensor : rank == root ? Without(tensors, moved) : tensors) {
    plan.stores.push_back({{}, tensor});
  }
  return plan;
}

absl::StatusOr<Plan> AllReduceMulti(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(tensors));
  Plan plan(Collective::AllReduce(tensors[0], op, factor), tensors[0].dtype(), tensors[0].numel(),
            0, tensors);
  plan.loads.push_back({tensors, {}});
  plan.divisor = static_cast<int>(tensors.size());
  for (const Tensor& tensor : tensors) plan.stores.push_back({{}, tensor});
  return plan;
}

absl::StatusOr<Plan> ReduceMulti(const Tensors& tensors, int root, ReduceOp op, int64_t root_tensor,
                                 double factor, int rank) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckRootTensor(root_tensor, tensors));
  Plan plan(Collective::Reduce(tensors[0], op, root, factor), tensors[0].dtype(),
            tensors[0].numel(), 0, tensors);
  plan.loads.push_back({tensors, {}});
  if (rank != root) return plan;
  plan.divisor = static_cast<int>(tensors.size());
  const Tensor& result = tensors[root_tensor];
  SYNCLINE_RETURN_IF_ERROR(
      tensor::CheckWritable(result, absl::StrCat("tensors[", root_tensor, "]")));
  SYNCLINE_RETURN_IF_ERROR(
      tensor::CheckApart(absl::MakeConstSpan(&result, 1), Without(tensors, root_tensor)));
  plan.stores.push_back({{}, result});
  return plan;
}

absl::StatusOr<Plan> AllGatherMulti(const Tensors& outputs, const Tensors& inputs, int rank,
                                    int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(inputs, "inputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  const size_t n = inputs.size(), places = n * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", places));
  SYNCLINE_RETURN_IF_ERROR(
      tensor::CheckApart(outputs, inputs, [=](size_t i) { return i * places + rank * n + i; }));
  Plan plan(Collective::AllGather({}, inputs[0]), inputs[0].dtype(), TotalCount(inputs), size,
            inputs);
  plan.LoadPacked(inputs);
  // Each n outputs in turn are what one rank has sent.
  for (size_t first = 0; first < outputs.size(); first += n) {
    plan.StorePacked(static_cast<int>(first % places / n),
                     absl::MakeConstSpan(outputs).subspan(first, n));
  }
  return plan;
}

absl::StatusOr<Plan> ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs, ReduceOp op,
                                        double factor, int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  const size_t n = outputs.size(), places = n * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", places));
  // inputs[i * places + p] is this rank's own if the i-th output is at place p.
  const auto twin = [=](size_t i) {
    return i % places == rank * n + i / places ? i / places : tensor::kNoTwin;
  };
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckApart(outputs, inputs, twin));
  Plan plan(Collective::ReduceScatter(outputs[0], {}, op, factor), outputs[0].dtype(),
            TotalCount(outputs), size, outputs);
  const int64_t bytes = static_cast<int64_t>(outputs[0].nbytes());
  for (size_t place = 0; place < places; ++place) {
    plan.loads.push_back({Column(inputs, places, place),
                          {static_cast<int>(place / n), static_cast<int64_t>(place % n) * bytes}});
  }
  plan.divisor = static_cast<int>(n);
  plan.StorePacked(Plan::Location::kTensor, outputs);
  return plan;
}

}  // namespace syncline::group
