#include "core/composed.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/reduce_kernels.h"
#include "core/status.h"

namespace syncline {
namespace {

// ---- Parts of one tensor ----

absl::Status CheckContiguous(const Tensor& tensor, absl::string_view what) {
  if (tensor.is_contiguous()) return absl::OkStatus();
  return ArgumentError(absl::StrCat(what, " is not contiguous (", tensor.ToString(),
                                    "): pass a contiguous copy, such as "
                                    "numpy.ascontiguousarray(x) or x.contiguous()"));
}

// `whole`, which holds `size` parts like `part`, in equal parts.
absl::StatusOr<Tensors> EqualParts(const Tensor& whole, absl::string_view whole_name,
                                   const Tensor& part, absl::string_view part_name, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckContiguous(whole, absl::StrCat("the ", whole_name)));
  if (whole.numel() != part.numel() * size) {
    return ArgumentError(absl::StrCat("the ", whole_name, " is ", whole.ToString(), " but the ",
                                      part_name, " is ", part.ToString(), ": the ", whole_name,
                                      " must have ", size, " times its elements"));
  }
  Tensors parts;
  for (int r = 0; r < size; ++r) parts.push_back(whole.Slice(r * part.numel(), part.numel()));
  return parts;
}

// `whole` in parts of `splits` rows; without splits, in `size` equal ones.
absl::StatusOr<Tensors> Rows(const Tensor& whole, absl::string_view name,
                             std::vector<int64_t> splits, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckContiguous(whole, absl::StrCat("the ", name)));
  const int64_t rows = whole.shape().empty() ? whole.numel() : whole.shape()[0];
  if (splits.empty()) {
    if (rows % size != 0) {
      return ArgumentError(absl::StrCat("the ", name, " is ", whole.ToString(), ", whose first ",
                                        "dimension cannot be split equally between ", size,
                                        " ranks: pass ", name, "_splits"));
    }
    splits.assign(size, rows / size);
  }
  if (splits.size() != static_cast<size_t>(size)) {
    return ArgumentError(absl::StrCat(name, "_splits needs one number for each of the ", size,
                                      " ranks, not ", splits.size()));
  }
  const int64_t row = rows == 0 ? 0 : whole.numel() / rows;
  Tensors parts;
  int64_t at = 0;
  for (int64_t split : splits) {
    if (split < 0 || split > rows - at) {
      return ArgumentError(absl::StrCat(name, "_splits must be 0 or more and add up to ", rows,
                                        ", the first dimension of ", whole.ToString()));
    }
    parts.push_back(whole.Slice(at * row, split * row));
    at += split;
  }
  if (at != rows) {
    return ArgumentError(absl::StrCat(name, "_splits add up to ", at,
                                      ", but the first dimension of ", whole.ToString(), " is ",
                                      rows));
  }
  return parts;
}

// ---- Several tensors ----

absl::Status CheckEach(const Tensors& tensors, absl::string_view what, Access needed) {
  if (tensors.empty()) return ArgumentError(absl::StrCat(what, " is empty: pass at least one"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string item = absl::StrCat(what, "[", i, "]");
    SYNCLINE_RETURN_IF_ERROR(CheckContiguous(tensors[i], item));
    if (tensors[i].device().type != DeviceType::kCpu) {
      return ArgumentError(absl::StrCat(item, " is on ", ToString(tensors[i].device()),
                                        ": operations on several tensors work on the CPU only"));
    }
    if (needed == Access::kReadWrite && tensors[i].access() == Access::kReadOnly) {
      return TypeError(absl::StrCat(item, " is read-only (", tensors[i].ToString(),
                                    ") but would be written: pass a writable copy"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAlike(const Tensor& a, const std::string& a_name, const Tensor& b,
                        const std::string& b_name) {
  if (a.dtype() == b.dtype() && a.numel() == b.numel()) return absl::OkStatus();
  const std::string text = absl::StrCat(a_name, " is ", a.ToString(), " but ", b_name, " is ",
                                        b.ToString(), ": their types and sizes must be equal");
  return a.dtype() == b.dtype() ? ArgumentError(text) : TypeError(text);
}

absl::Status CheckOneType(const Tensors& tensors, absl::string_view what) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].dtype() != tensors[0].dtype()) {
      return TypeError(absl::StrCat(what, "[", i, "] is ", tensors[i].ToString(), " but ", what,
                                    "[0] is ", tensors[0].ToString(), ": one type is needed"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllAlike(const Tensors& tensors, absl::string_view what) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckAlike(tensors[i], absl::StrCat(what, "[", i, "]"), tensors[0],
                                        absl::StrCat(what, "[0]")));
  }
  return absl::OkStatus();
}

// `many` has `each` tensors like each of `few`.
absl::Status CheckMany(const Tensors& many, absl::string_view many_name, const Tensors& few,
                       absl::string_view few_name, size_t each) {
  if (many.size() != few.size() * each) {
    return ArgumentError(absl::StrCat(many_name, " needs ", each, " tensors for each of the ",
                                      few.size(), " of ", few_name, ", ", few.size() * each,
                                      " in all, not ", many.size()));
  }
  for (size_t i = 0; i < many.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckAlike(many[i], absl::StrCat(many_name, "[", i, "]"),
                                        few[i / each], absl::StrCat(few_name, "[", i / each, "]")));
  }
  return absl::OkStatus();
}

int64_t TotalBytes(const Tensors& tensors) {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

// A buffer for `bytes` as elements of `dtype`.
Tensor Buffer(DType dtype, int64_t bytes) {
  return Tensor::Zeros(dtype, {bytes / static_cast<int64_t>(SizeOf(dtype))});
}

void Copy(const Tensor& from, const Tensor& to) {
  if (to.nbytes() > 0) std::memcpy(to.data(), from.data(), to.nbytes());
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

// `flat`, with `before` and `after` around it, under the name `alias`.
template <typename Before, typename After>
Operation Around(Operation flat, absl::string_view alias, int rank, Before before, After after) {
  Operation whole = flat;
  whole.alias = alias;
  whole.body = [flat = std::move(flat), rank, before = std::move(before), after = std::move(after)](
                   const CallContext& context, Backend& backend) -> absl::StatusOr<int> {
    before(flat);
    SYNCLINE_RETURN_IF_ERROR(Dispatch(flat, context, backend, rank).status());
    after(flat);
    return 0;
  };
  return whole;
}

Operation Reduction(OpKind kind, Tensor tensor, Tensors inputs, ReduceOp op, double factor,
                    int64_t root = 0) {
  Operation operation{kind, std::move(tensor), {}, std::move(inputs), op, factor, root};
  return operation;
}

Tensors FlatParts(const Tensor& flat, int64_t bytes, int size) {
  const int64_t count = bytes / static_cast<int64_t>(SizeOf(flat.dtype()));
  Tensors parts;
  for (int r = 0; r < size; ++r) parts.push_back(flat.Slice(r * count, count));
  return parts;
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

absl::Status CheckIndex(int64_t index, const Tensors& tensors) {
  if (index >= 0 && index < static_cast<int64_t>(tensors.size())) return absl::OkStatus();
  return ArgumentError(absl::StrCat("root_tensor must be the index of one of the ", tensors.size(),
                                    " tensors, not ", index));
}

}  // namespace

absl::StatusOr<Operation> AllGatherSingle(const Tensor& output, const Tensor& input, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(Tensors parts, EqualParts(output, "output", input, "input", size));
  Operation operation{OpKind::kAllGather, input, std::move(parts)};
  operation.alias = "all_gather_single";
  return operation;
}

absl::StatusOr<Operation> ReduceScatterSingle(const Tensor& output, const Tensor& input,
                                              ReduceOp op, double factor, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(Tensors parts, EqualParts(input, "input", output, "output", size));
  Operation operation = Reduction(OpKind::kReduceScatter, output, std::move(parts), op, factor);
  operation.alias = "reduce_scatter_single";
  return operation;
}

absl::StatusOr<Operation> AllToAllSingle(const Tensor& output, const Tensor& input,
                                         const std::vector<int64_t>& output_splits,
                                         const std::vector<int64_t>& input_splits, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(Tensors outputs, Rows(output, "output", output_splits, size));
  SYNCLINE_ASSIGN_OR_RETURN(Tensors inputs, Rows(input, "input", input_splits, size));
  Operation operation{OpKind::kAllToAll, {}, std::move(outputs), std::move(inputs)};
  operation.alias = "all_to_all_single";
  return operation;
}

absl::StatusOr<Operation> BroadcastCoalesced(const Tensors& tensors, int64_t root) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  Operation flat{OpKind::kBroadcast, Buffer(DType::kUInt8, TotalBytes(tensors)), {}, {}};
  flat.peer = root;
  return Around(
      std::move(flat), "broadcast_coalesced", 0,
      [tensors](const Operation& op) { Pack(tensors, op.tensor); },
      [tensors](const Operation& op) { Unpack(op.tensor, tensors); });
}

absl::StatusOr<Operation> AllReduceCoalesced(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(tensors, "tensors"));
  Tensor buffer = Buffer(tensors[0].dtype(), TotalBytes(tensors));
  return Around(
      Reduction(OpKind::kAllReduce, std::move(buffer), {}, op, factor), "all_reduce_coalesced", 0,
      [tensors](const Operation& flat) { Pack(tensors, flat.tensor); },
      [tensors](const Operation& flat) { Unpack(flat.tensor, tensors); });
}

absl::StatusOr<Operation> AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs,
                                             int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", size));
  const int64_t bytes = TotalBytes(inputs);
  Operation flat{OpKind::kAllGather, Buffer(DType::kUInt8, bytes),
                 FlatParts(Buffer(DType::kUInt8, bytes * size), bytes, size)};
  return Around(
      std::move(flat), "all_gather_coalesced", 0,
      [inputs](const Operation& op) { Pack(inputs, op.tensor); },
      [outputs, size](const Operation& op) {
        for (int r = 0; r < size; ++r) Unpack(op.outputs[r], Column(outputs, size, r));
      });
}

absl::StatusOr<Operation> ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                                 ReduceOp op, double factor, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckOneType(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", size));
  const DType dtype = outputs[0].dtype();
  const int64_t bytes = TotalBytes(outputs);
  Tensors parts = FlatParts(Buffer(dtype, bytes * size), bytes, size);
  return Around(
      Reduction(OpKind::kReduceScatter, Buffer(dtype, bytes), std::move(parts), op, factor),
      "reduce_scatter_coalesced", 0,
      [inputs, size](const Operation& flat) {
        for (int r = 0; r < size; ++r) Pack(Column(inputs, size, r), flat.inputs[r]);
      },
      [outputs](const Operation& flat) { Unpack(flat.tensor, outputs); });
}

absl::StatusOr<Operation> BroadcastMulti(const Tensors& tensors, int64_t root, int64_t root_tensor,
                                         int rank) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(root_tensor, tensors));
  Operation flat{OpKind::kBroadcast, tensors[rank == root ? root_tensor : 0]};
  flat.peer = root;
  return Around(
      std::move(flat), "broadcast_multi", rank, [](const Operation&) {},
      [tensors](const Operation& op) {
        for (const Tensor& tensor : tensors) {
          if (tensor.data() != op.tensor.data()) Copy(op.tensor, tensor);
        }
      });
}

absl::StatusOr<Operation> AllReduceMulti(const Tensors& tensors, ReduceOp op, double factor) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckReduction(tensors[0].dtype(), op));
  Tensor sum = Tensor::Zeros(tensors[0].dtype(), tensors[0].shape());
  return Around(
      Reduction(OpKind::kAllReduce, std::move(sum), {}, op, factor), "all_reduce_multi", 0,
      [tensors](const Operation& flat) { ReduceHere(flat.reduce_op, tensors, flat.tensor); },
      [tensors](const Operation& flat) {
        DivideHere(flat.reduce_op, flat.tensor, tensors.size());
        for (const Tensor& tensor : tensors) Copy(flat.tensor, tensor);
      });
}

absl::StatusOr<Operation> ReduceMulti(const Tensors& tensors, int64_t root, ReduceOp op,
                                      int64_t root_tensor, double factor, int rank) {
  const Access needed = rank == root ? Access::kReadWrite : Access::kReadOnly;
  SYNCLINE_RETURN_IF_ERROR(CheckEach(tensors, "tensors", needed));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(tensors, "tensors"));
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(root_tensor, tensors));
  SYNCLINE_RETURN_IF_ERROR(CheckReduction(tensors[0].dtype(), op));
  Tensor sum = Tensor::Zeros(tensors[0].dtype(), tensors[0].shape());
  return Around(
      Reduction(OpKind::kReduce, std::move(sum), {}, op, factor, root), "reduce_multi", rank,
      [tensors](const Operation& flat) { ReduceHere(flat.reduce_op, tensors, flat.tensor); },
      [tensors, rank, root_tensor](const Operation& flat) {
        if (rank != flat.peer) return;
        DivideHere(flat.reduce_op, flat.tensor, tensors.size());
        Copy(flat.tensor, tensors[root_tensor]);
      });
}

absl::StatusOr<Operation> AllGatherMulti(const Tensors& outputs, const Tensors& inputs, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(inputs, "inputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  const size_t places = inputs.size() * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(outputs, "outputs", inputs, "inputs", places));
  const DType dtype = inputs[0].dtype();
  const int64_t bytes = TotalBytes(inputs);
  Operation flat{OpKind::kAllGather, Buffer(dtype, bytes),
                 FlatParts(Buffer(dtype, bytes * size), bytes, size)};
  return Around(
      std::move(flat), "all_gather_multi", 0,
      [inputs](const Operation& op) { Pack(inputs, op.tensor); },
      [outputs, n = inputs.size(), places](const Operation& op) {
        for (size_t first = 0; first < outputs.size(); first += n) {
          const auto begin = outputs.begin() + static_cast<ptrdiff_t>(first);
          Unpack(op.outputs[first % places / n], Tensors(begin, begin + static_cast<ptrdiff_t>(n)));
        }
      });
}

absl::StatusOr<Operation> ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs,
                                             ReduceOp op, double factor, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckEach(outputs, "outputs", Access::kReadWrite));
  SYNCLINE_RETURN_IF_ERROR(CheckAllAlike(outputs, "outputs"));
  SYNCLINE_RETURN_IF_ERROR(CheckEach(inputs, "inputs", Access::kReadOnly));
  const size_t places = outputs.size() * size;
  SYNCLINE_RETURN_IF_ERROR(CheckMany(inputs, "inputs", outputs, "outputs", places));
  SYNCLINE_RETURN_IF_ERROR(CheckReduction(outputs[0].dtype(), op));
  const DType dtype = outputs[0].dtype();
  const int64_t count = outputs[0].numel();
  const int64_t bytes = TotalBytes(outputs);
  Tensors parts = FlatParts(Buffer(dtype, bytes * size), bytes, size);
  return Around(
      Reduction(OpKind::kReduceScatter, Buffer(dtype, bytes), std::move(parts), op, factor),
      "reduce_scatter_multi", 0,
      [inputs, n = outputs.size(), places, count](const Operation& flat) {
        for (size_t place = 0; place < places; ++place) {
          const Tensor& part = flat.inputs[place / n];
          ReduceHere(flat.reduce_op, Column(inputs, places, place),
                     part.Slice(static_cast<int64_t>(place % n) * count, count));
        }
      },
      [outputs](const Operation& flat) {
        DivideHere(flat.reduce_op, flat.tensor, outputs.size());
        Unpack(flat.tensor, outputs);
      });
}

}  // namespace syncline
