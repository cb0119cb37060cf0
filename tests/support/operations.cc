#include "tests/support/operations.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/status.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

constexpr int kBlank = 999;  // The seed of what outputs hold before.

// Which of Numbers or Bytes the part from `from` to `to` is.
int SeedOf(int from, int to, int size) { return from * size + to; }

Tensor Fill(const Spec& spec, int64_t count, int seed) {
  return Reduces(spec.kind) ? Numbers(spec.dtype, count, seed) : Bytes(spec.dtype, count, seed);
}

// The tensor that goes from `from` to `to`. What every rank gets alike has `to` 0.
Tensor Part(const Spec& spec, int from, int to, int size) {
  return Fill(spec, spec.SizeOf(from, to), SeedOf(from, to, size));
}

// The seeds of what all ranks send to `to`.
std::vector<int> SeedsTo(int to, int size) {
  std::vector<int> seeds;
  for (int from = 0; from < size; ++from) seeds.push_back(SeedOf(from, to, size));
  return seeds;
}

std::vector<int> FirstOf(std::vector<int> seeds, int count) {
  seeds.resize(count);
  return seeds;
}

absl::Status Wrong(absl::string_view what, int index, const Spec& spec, int rank, int size) {
  return absl::InternalError(absl::StrCat(spec.ToString(), " on rank ", rank, " of ", size, ": ",
                                          what, "[", index, "] is wrong"));
}

// Compares lists of tensors; `skipped` is not looked at.
absl::Status Compare(absl::Span<const Tensor> got, absl::Span<const Tensor> want,
                     absl::string_view what, const Spec& spec, int rank, int size,
                     int skipped = -1) {
  for (int i = 0; i < static_cast<int>(want.size()); ++i) {
    if (i != skipped && !SameBytes(got[i], want[i])) return Wrong(what, i, spec, rank, size);
  }
  return absl::OkStatus();
}

// The outputs of operations that move, on this rank, once done.
std::vector<Tensor> Moved(const Spec& spec, int rank, int size) {
  std::vector<Tensor> parts;
  const bool to_all = spec.kind == OpKind::kAllGather || spec.kind == OpKind::kGather;
  for (int from = 0; from < size; ++from) {
    parts.push_back(Part(spec, from, to_all ? 0 : rank, size));
  }
  return parts;
}

bool IsElsewhere(const Spec& spec, int rank) { return HasRoot(spec.kind) && rank != spec.root; }

absl::Status CheckTensor(const Spec& spec, const Collective& done, int rank, int size) {
  const Tensor& tensor = *done.tensor;
  auto compare = [&](const Tensor& want) {
    return Compare({tensor}, {want}, "tensor", spec, rank, size);
  };
  absl::Status reduced;
  switch (spec.kind) {
    case OpKind::kBroadcast:
      return compare(Part(spec, spec.root, 0, size));
    case OpKind::kScatter:
      return compare(Part(spec, spec.root, rank, size));
    case OpKind::kAllGather:
    case OpKind::kGather:
      return compare(Part(spec, rank, 0, size));  // The input.
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      if (IsElsewhere(spec, rank)) return compare(Part(spec, rank, 0, size));
      reduced = CheckReduced(tensor, spec.op, SeedsTo(0, size));
      break;
    case OpKind::kReduceScatter:
      reduced = CheckReduced(tensor, spec.op, SeedsTo(rank, size));
      break;
    case OpKind::kScan:
      reduced = CheckReduced(tensor, spec.op, FirstOf(SeedsTo(0, size), rank + 1));
      break;
    case OpKind::kExscan:
      if (rank == 0) return compare(Part(spec, rank, 0, size));
      reduced = CheckReduced(tensor, spec.op, FirstOf(SeedsTo(0, size), rank));
      break;
    default:
      return absl::OkStatus();
  }
  return Annotate(reduced, absl::StrCat(spec.ToString(), " on rank ", rank, " of ", size));
}

}  // namespace

int64_t Spec::SizeOf(int from, int to) const {
  if (uneven.empty()) return count;
  const int index = kind == OpKind::kAllGather       ? from
                    : kind == OpKind::kReduceScatter ? to
                                                     : 2 * from + to;
  return uneven[index % uneven.size()];
}

std::string Spec::ToString() const {
  std::string text = absl::StrCat(
      Name(kind), " of ", Name(dtype), ", ",
      uneven.empty() ? absl::StrCat(count) : absl::StrCat("[", absl::StrJoin(uneven, ", "), "]"),
      " elements");
  if (Reduces(kind)) absl::StrAppend(&text, ", ", Name(op));
  if (HasRoot(kind)) absl::StrAppend(&text, ", root ", root);
  if (buffers == BufferUse::kInPlace) absl::StrAppend(&text, ", in place");
  return text;
}

std::vector<OpKind> CollectiveKinds() {
  std::vector<OpKind> kinds;
  for (OpKind kind : AllOpKinds()) {
    if (!IsP2p(kind)) kinds.push_back(kind);
  }
  return kinds;
}

std::vector<ReduceOp> ReductionsOf(OpKind kind, DType dtype) {
  if (!Reduces(kind)) return {ReduceOp::kSum};
  const bool is_prefix = kind == OpKind::kScan || kind == OpKind::kExscan;
  std::vector<ReduceOp> ops;
  for (ReduceOp op : AllReduceOps()) {
    if (CheckReduction(dtype, op).ok() && !(is_prefix && op == ReduceOp::kAvg)) ops.push_back(op);
  }
  return ops;
}

bool AllowsInPlace(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kReduceScatter;
}

bool HasSplits(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

Collective Build(const Spec& spec, int rank, int size) {
  Collective operation(spec.kind);
  operation.reduce_op = spec.op;
  if (HasRoot(spec.kind) || IsP2p(spec.kind)) operation.peer = spec.root;
  operation.tag = spec.tag;
  const bool has_lists = !IsElsewhere(spec, rank);
  const bool in_place = spec.buffers == BufferUse::kInPlace;
  Tensor tensor;
  std::vector<Tensor> outputs, inputs;
  switch (spec.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
      tensor = Part(spec, rank, 0, size);
      for (int from = 0; has_lists && from < size; ++from) {
        outputs.push_back(Fill(spec, spec.SizeOf(from, 0), kBlank));
      }
      if (has_lists && in_place) outputs[rank] = tensor;
      break;
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
      tensor = Fill(spec, spec.SizeOf(spec.root, rank), kBlank);
      for (int to = 0; has_lists && to < size; ++to) {
        inputs.push_back(Part(spec, rank, to, size));
      }
      if (has_lists && in_place) tensor = inputs[rank];
      break;
    case OpKind::kAllToAll:
      for (int other = 0; other < size; ++other) {
        inputs.push_back(Part(spec, rank, other, size));
        outputs.push_back(Fill(spec, spec.SizeOf(other, rank), kBlank));
      }
      break;
    case OpKind::kBarrier:
      break;
    default:
      tensor = Part(spec, rank, 0, size);
  }
  operation.OwnTensor(std::move(tensor));
  operation.OwnOutputs(std::move(outputs));
  operation.OwnInputs(std::move(inputs));
  return operation;
}

absl::Status CheckDone(const Spec& spec, const Collective& done, int rank, int size) {
  SYNCLINE_RETURN_IF_ERROR(CheckTensor(spec, done, rank, size));
  if (!done.outputs.empty()) {
    SYNCLINE_RETURN_IF_ERROR(
        Compare(done.outputs, Moved(spec, rank, size), "outputs", spec, rank, size));
  }
  const int overwritten = spec.buffers == BufferUse::kInPlace ? rank : -1;
  return Compare(done.inputs, Build(spec, rank, size).inputs, "inputs", spec, rank, size,
                 overwritten);
}

absl::Status CheckUntouched(const Spec& spec, const Collective& made, int rank, int size) {
  const Collective fresh = Build(spec, rank, size);
  SYNCLINE_RETURN_IF_ERROR(Compare({*made.tensor}, {*fresh.tensor}, "tensor", spec, rank, size));
  SYNCLINE_RETURN_IF_ERROR(Compare(made.outputs, fresh.outputs, "outputs", spec, rank, size));
  return Compare(made.inputs, fresh.inputs, "inputs", spec, rank, size);
}

}  // namespace syncline
