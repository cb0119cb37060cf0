#include "core/group/composed.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"
#include "core/tensor/tensor_checks.h"

namespace syncline {
namespace {

// The caller's, kept for the operation's turn.
using Kept = std::shared_ptr<const Tensors>;

Kept Keep(const Tensors& tensors) { return std::make_shared<const Tensors>(tensors); }

int64_t TotalBytes(const Tensors& tensors) {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

int64_t TotalCount(const Tensors& tensors) {
  return TotalBytes(tensors) / static_cast<int64_t>(SizeOf(tensors[0].dtype()));
}

void Copy(const Tensor& from, const Tensor& to) {
  if (to.nbytes() > 0 && to.data() != from.data()) {
    std::memcpy(to.data(), from.data(), to.nbytes());
  }
}

void Pack(const Tensors& tensors, const Tensor& buffer) {
  auto* at = buffer.data_as<std::byte>();
  for (const Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(at, tensor.data(), tensor.nbytes());
    at += tensor.nbytes();
  }
}

void Unpack(const Tensor& buffer, const Tensors& tensors) {
  const auto* at = buffer.data_as<std::byte>();
  for (const Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data(), at, tensor.nbytes());
    at += tensor.nbytes();
  }
}

// tensors[i * stride + place] for all i.
Tensors Column(const Tensors& tensors, size_t stride, size_t place) {
  Tensors column;
  for (size_t i = place; i < tensors.size(); i += stride) column.push_back(tensors[i]);
  return column;
}

// The one call of the backend that does the work, with nothing in place of its buffers: a tensor
// of `count` elements, and as many parts like it as the kind takes.
struct Flat {
  Operation operation;
  int64_t count;

  Flat(OpKind kind, DType dtype, int64_t elements, int parts = 0)
      : operation(kind), count(elements) {
    operation.HoldTensor(Tensor(nullptr, dtype, {0}));
    Tensors list(parts, *operation.tensor);
    kind == OpKind::kAllGather ? operation.HoldOutputs(std::move(list))
                               : operation.HoldInputs(std::move(list));
  }

  Flat(OpKind kind, DType dtype, int64_t elements, ReduceOp op, double factor, int parts = 0)
      : Flat(kind, dtype, elements, parts) {
    operation.reduce_op = op;
    operation.factor = factor;
  }

  // The operation with its buffers.
  absl::StatusOr<Operation> Make() const {
    Operation made = operation;
    const DType dtype = made.tensor->dtype();
    SYNCLINE_ASSIGN_OR_RETURN(Tensor buffer, Tensor::TryZeros(dtype, {count}));
    made.HoldTensor(std::move(buffer));
    SYNCLINE_ASSIGN_OR_RETURN(Tensors outputs, MakeParts(dtype, made.outputs.size()));
    made.HoldOutputs(std::move(outputs));
    SYNCLINE_ASSIGN_OR_RETURN(Tensors inputs, MakeParts(dtype, made.inputs.size()));
    made.HoldInputs(std::move(inputs));
    return made;
  }

 private:
  absl::StatusOr<Tensors> MakeParts(DType dtype, size_t parts) const {
    Tensors made;
    if (parts == 0) return made;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor all,
                              Tensor::TryZeros(dtype, {count * static_cast<int64_t>(parts)}));
    for (size_t r = 0; r < parts; ++r) {
      made.push_back(all.Slice(static_cast<int64_t>(r) * count, count));
    }
    return made;
  }
};

// `flat`, with `before` and `after` around it, as an operation on `listed`.
template <typename Before, typename After>
Operation Around(Flat flat, Kept listed, int rank, Before before, After after) {
  Operation whole = flat.operation;
  whole.listed = std::move(listed);
  whole.body = [flat = std::move(flat), rank, before = std::move(before), after = std::move(after)](
                   const CallContext& context, Backend& backend) -> absl::StatusOr<int> {
    SYNCLINE_ASSIGN_OR_RETURN(const Operation made, flat.Make());
    before(made);
    SYNCLINE_RETURN_IF_ERROR(Dispatch(made, context, backend, rank).status());
    after(made);
    return 0;
  };
  return whole;
}

// Reduces `tensors` of this process into `sum`; an average is divided by the ranks only.
void ReduceHere(ReduceOp op, const Tensors& tensors, const Tensor& sum) {
  std::vector<const void*> inputs;
  for (const Tensor& tensor : tensors) inputs.push_back(tensor.data());
  if (sum.nbytes() == 0) return;
  Reduce(sum.dtype(), op == ReduceOp::kAvg ? ReduceOp::kSum : op, sum.data(), inputs, sum.numel());
}

void DivideHere(ReduceOp op, const Tensor& sum, size_t tensors) {
  if (op == ReduceOp::kAvg) Divide(sum.dtype(), sum.data(), static_cast<int>(tensors), sum.numel());
}

// All but tensors[index].
Tensors Without(const Tensors& tensors, size_t index) {
  Tensors others = tensors;
  others.erase(others.begin() + static_cast<ptrdiff_t>(index));
  return others;
}

}  // namespace

absl::StatusOr<Operation> BroadcastCoalesced(const Tensors& tensors, int64_t root, int rank) {
  const bool is_root = rank == root;
  SYNCLINE_RETURN_IF_ERROR(
      CheckEach(tensors, "tensors", is_root ? Access::kReadOnly : Access::kReadWrite));
  if (!is_root) SYNCLINE_RETURN_IF_ERROR(CheckApart(tensors));
  Flat flat(OpKind::kBroadcast, DType::kUInt8, TotalBytes(tensors));
  flat.operation.peer = root;
  const Kept kept = Keep(tensors);
  return Around(
      std::move(flat), kept, rank,
      [kept, is_root](const Operation& op) {
        if (is_root) Pack(*kept, *op.tensor);
      },
      [kept, is_root](const Operation& op) {
        if (!is_root) Unpack(*op.tensor, *kept);
      });
}

absl::StatusOr<Operation> AllReduceCoalesced(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckApart(tensors));
  const Kept kept = Keep(tensors);
  return Around(
      Flat(OpKind::kAllReduce, tensors[0].dtype(), TotalCount(tensors), op, factor), kept, 0,
      [kept](const Operation& flat) { Pack(*kept, *flat.tensor); },
      [kept](const Operation& flat) { Unpack(*flat.tensor, *kept); });
}

absl::StatusOr<Operation> AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs,
                                             int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", size));
  SYNCLINE_RETURN_IF_ERROR(CheckApart(outputs, inputs, [=](size_t i) { return i * size + rank; }));
  const Kept from = Keep(inputs), to = Keep(outputs);
  return Around(
      Flat(OpKind::kAllGather, DType::kUInt8, TotalBytes(inputs), size), from, rank,
      [from](const Operation& op) { Pack(*from, *op.tensor); },
      [to, size](const Operation& op) {
        for (int r = 0; r < size; ++r) Unpack(op.outputs[r], Column(*to, size, r));
      });
}

absl::StatusOr<Operation> ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                                 ReduceOp op, double factor, int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", size));
  const auto twin = [=](size_t i) {
    return i % size == static_cast<size_t>(rank) ? i / size : kNoTwin;
  };
  SYNCLINE_RETURN_IF_ERROR(CheckApart(outputs, inputs, twin));
  const Kept from = Keep(inputs), to = Keep(outputs);
  return Around(
      Flat(OpKind::kReduceScatter, outputs[0].dtype(), TotalCount(outputs), op, factor, size), to,
      rank,
      [from, size](const Operation& flat) {
        for (int r = 0; r < size; ++r) Pack(Column(*from, size, r), flat.inputs[r]);
      },
      [to](const Operation& flat) { Unpack(*flat.tensor, *to); });
}

absl::StatusOr<Operation> BroadcastMulti(const Tensors& tensors, int64_t root, int64_t root_tensor,
                                         int rank) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckRootTensor(root_tensor, tensors));
  SYNCLINE_RETURN_IF_ERROR(CheckApart(tensors));
  const size_t moved = rank == root ? static_cast<size_t>(root_tensor) : 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (rank == root && i == moved) continue;
    SYNCLINE_RETURN_IF_ERROR(CheckWritable(tensors[i], absl::StrCat("tensors[", i, "]")));
  }
  Operation flat(OpKind::kBroadcast);
  flat.HoldTensor(tensors[moved]);
  flat.peer = root;
  Operation whole = flat;
  whole.listed = Keep(tensors);
  whole.body = [flat, kept = whole.listed, rank](const CallContext& context,
                                                 Backend& backend) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(Dispatch(flat, context, backend, rank).status());
    for (const Tensor& tensor : *kept) Copy(*flat.tensor, tensor);
    return 0;
  };
  return whole;
}

absl::StatusOr<Operation> AllReduceMulti(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckApart(tensors));
  const Kept kept = Keep(tensors);
  return Around(
      Flat(OpKind::kAllReduce, tensors[0].dtype(), tensors[0].numel(), op, factor), kept, 0,
      [kept](const Operation& flat) { ReduceHere(flat.reduce_op, *kept, *flat.tensor); },
      [kept](const Operation& flat) {
        DivideHere(flat.reduce_op, *flat.tensor, kept->size());
        for (const Tensor& tensor : *kept) Copy(*flat.tensor, tensor);
      });
}

absl::StatusOr<Operation> ReduceMulti(const Tensors& tensors, int64_t root, ReduceOp op,
                                      int64_t root_tensor, double factor, int rank) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckRootTensor(root_tensor, tensors));
  if (rank == root) {
    const Tensor& result = tensors[root_tensor];
    SYNCLINE_RETURN_IF_ERROR(CheckWritable(result, absl::StrCat("tensors[", root_tensor, "]")));
    SYNCLINE_RETURN_IF_ERROR(
        CheckApart(absl::MakeConstSpan(&result, 1), Without(tensors, root_tensor)));
  }
  Flat flat(OpKind::kReduce, tensors[0].dtype(), tensors[0].numel(), op, factor);
  flat.operation.peer = root;
  const Kept kept = Keep(tensors);
  return Around(
      std::move(flat), kept, rank,
      [kept](const Operation& made) { ReduceHere(made.reduce_op, *kept, *made.tensor); },
      [kept, rank, root_tensor](const Operation& made) {
        if (rank != made.peer) return;
        DivideHere(made.reduce_op, *made.tensor, kept->size());
        Copy(*made.tensor, (*kept)[root_tensor]);
      });
}

absl::StatusOr<Operation> AllGatherMulti(const Tensors& outputs, const Tensors& inputs, int rank,
                                         int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(inputs, "inputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  const size_t n = inputs.size(), places = n * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", places));
  SYNCLINE_RETURN_IF_ERROR(
      CheckApart(outputs, inputs, [=](size_t i) { return i * places + rank * n + i; }));
  const Kept from = Keep(inputs), to = Keep(outputs);
  return Around(
      Flat(OpKind::kAllGather, inputs[0].dtype(), TotalCount(inputs), size), from, rank,
      [from](const Operation& op) { Pack(*from, *op.tensor); },
      [to, n, places](const Operation& op) {
        for (size_t first = 0; first < to->size(); first += n) {
          const auto begin = to->begin() + static_cast<ptrdiff_t>(first);
          Unpack(op.outputs[first % places / n], Tensors(begin, begin + static_cast<ptrdiff_t>(n)));
        }
      });
}

absl::StatusOr<Operation> ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs,
                                             ReduceOp op, double factor, int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  const size_t n = outputs.size(), places = n * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", places));
  // inputs[i * places + p] is this rank's own if the i-th output is at place p.
  const auto twin = [=](size_t i) {
    return i % places == rank * n + i / places ? i / places : kNoTwin;
  };
  SYNCLINE_RETURN_IF_ERROR(CheckApart(outputs, inputs, twin));
  const int64_t count = outputs[0].numel();
  const Kept from = Keep(inputs), to = Keep(outputs);
  return Around(
      Flat(OpKind::kReduceScatter, outputs[0].dtype(), TotalCount(outputs), op, factor, size), to,
      rank,
      [from, n, places, count](const Operation& flat) {
        for (size_t place = 0; place < places; ++place) {
          const Tensor& part = flat.inputs[place / n];
          ReduceHere(flat.reduce_op, Column(*from, places, place),
                     part.Slice(static_cast<int64_t>(place % n) * count, count));
        }
      },
      [to](const Operation& flat) {
        DivideHere(flat.reduce_op, *flat.tensor, to->size());
        Unpack(*flat.tensor, *to);
      });
}

}  // namespace syncline
