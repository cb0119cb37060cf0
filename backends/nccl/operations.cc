#include "backends/nccl/operations.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// What a reduction by kernels gathers at once, from all ranks together.
constexpr size_t kGatheredBytes = 8 << 20;

// What a communicator keeps for later calls at most.
constexpr size_t kKeptScratchBytes = 64 << 20;

// Pieces begin at multiples of so many bytes, as kernels that read several elements at once like.
constexpr size_t kAlignment = 256;

absl::optional<NcclDataType> NativeTypeOf(DType dtype, const GroupSupport& support) {
  switch (dtype) {
    case DType::kBool:  // A byte of 0 or 1.
    case DType::kUInt8:
      return kNcclUint8;
    case DType::kInt8:
      return kNcclInt8;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kUInt32:
      return kNcclUint32;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kUInt64:
      return kNcclUint64;
    case DType::kFloat16:
      return kNcclFloat16;
    case DType::kBFloat16:
      return kNcclBfloat16;
    case DType::kFloat32:
    case DType::kComplex64:
      return kNcclFloat32;
    case DType::kFloat64:
    case DType::kComplex128:
      return kNcclFloat64;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      if (!support.has_float8()) return absl::nullopt;
      return dtype == DType::kFloat8E4M3 ? kNcclFloat8E4M3 : kNcclFloat8E5M2;
    case DType::kInt16:
    case DType::kUInt16:
      return absl::nullopt;
  }
  return absl::nullopt;
}

bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

// bool's sum is or: what max is of 0 and 1.
absl::optional<NcclRedOp> NativeOpOf(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? kNcclMax : kNcclSum;
    case ReduceOp::kProduct:
      return is_bool ? kNcclMin : kNcclProd;
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kAvg:
      return kNcclAvg;
    case ReduceOp::kPremulSum:
      return kNcclSum;
    case ReduceOp::kBand:
      return is_bool ? absl::optional<NcclRedOp>(kNcclMin) : absl::nullopt;
    case ReduceOp::kBor:
      return is_bool ? absl::optional<NcclRedOp>(kNcclMax) : absl::nullopt;
    case ReduceOp::kBxor:
      return absl::nullopt;
  }
  return absl::nullopt;
}

// The element type of the factor of premul_sum: that of NCCL's elements.
DType RealOf(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

// A one, which is scaled: the conversion of the factor to the type.
uint64_t ScalarOf(DType dtype, double factor) {
  uint64_t bits = 0;
  switch (dtype) {
    case DType::kFloat16:
      bits = 0x3c00;
      break;
    case DType::kBFloat16:
      bits = 0x3f80;
      break;
    case DType::kFloat32:
      bits = 0x3f800000;
      break;
    default:
      bits = 0x3ff0000000000000;
  }
  tensor::Scale(dtype, &bits, factor, 1);
  return bits;
}

const char* BytesOf(const Tensor& tensor) { return static_cast<const char*>(tensor.data()); }

// Whether the tensors lie one behind another, without gaps.
bool AreOneBlock(absl::Span<const Tensor> tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (BytesOf(tensors[i]) != BytesOf(tensors[i - 1]) + tensors[i - 1].nbytes()) return false;
  }
  return true;
}

bool AreOfOneSize(absl::Span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const Tensor& tensor) { return tensor.numel() == tensors[0].numel(); });
}

bool IsPrefix(OpKind kind) { return kind == OpKind::kScan || kind == OpKind::kExscan; }

bool NeedsKernels(const Collective& call, const GroupSupport& support) {
  if (!Reduces(call.kind)) return false;
  return IsPrefix(call.kind) ||
         !NativeReductionOf(call.dtype(), call.reduce_op, support).has_value();
}

}  // namespace

absl::optional<NativeReduction> NativeReductionOf(DType dtype, ReduceOp op,
                                                  const GroupSupport& support) {
  const absl::optional<NcclDataType> native_type = NativeTypeOf(dtype, support);
  const absl::optional<NcclRedOp> native_op = NativeOpOf(dtype, op);
  if (!native_type.has_value() || !native_op.has_value()) return absl::nullopt;
  if (op == ReduceOp::kPremulSum && IsFloat8(dtype)) return absl::nullopt;
  NativeReduction native = {*native_type};
  native.elements = IsComplex(dtype) ? 2 : 1;
  native.op = *native_op;
  native.premultiplies = op == ReduceOp::kPremulSum;
  native.divides = op == ReduceOp::kAvg && IsInteger(dtype) && support.has_kernels();
  if (native.divides) native.op = kNcclSum;
  return native;
}

absl::Status CheckServed(const Collective& call, const GroupSupport& support) {
  if (IsP2p(call.kind)) {
    if (call.tag != 0) {
      return UnsupportedError(absl::StrCat("backend nccl serves no tags but 0: NCCL matches the ",
                                           "messages between two ranks by their order alone, and "
                                           "this has tag ",
                                           call.tag));
    }
    if (call.peer == kAnySource) {
      return UnsupportedError(
          "backend nccl does not receive from any rank: NCCL must know which rank sends before it "
          "enqueues the receive");
    }
  }
  if (!Reduces(call.kind)) return absl::OkStatus();
  const DType dtype = call.dtype();
  // NCCL would end the group, or read what its other version does not know.
  if (IsFloat8(dtype) && !support.has_float8()) {
    return support.NoFloat8Error(absl::StrCat("reductions of ", Name(dtype)));
  }
  if (!NeedsKernels(call, support)) return absl::OkStatus();
  const std::string what =
      IsPrefix(call.kind)
          ? std::string(Name(call.kind))
          : absl::StrCat("the reduction ", Name(call.reduce_op), " of ", Name(dtype));
  if (IsFloat8(dtype)) {
    return UnsupportedError(
        absl::StrCat("NCCL lacks ", what, ", and there is no kernel for ", Name(dtype)));
  }
  return support.has_kernels() ? absl::OkStatus() : support.NoKernelsError(what);
}

struct Operations::Step {
  absl::optional<NativeReduction> native;
  absl::optional<NcclRedOp> made_op;  // To be destroyed.
  // Of a block of all ranks' parts; of a message, which goes through memory of the communicator's
  // device if it is on another.
  const void* source = nullptr;
  char* target = nullptr;
};

absl::Status Operations::Check(const char* function, NcclResult result) const {
  // A non-blocking communicator goes on by itself.
  if (result == kNcclSuccess || result == kNcclInProgress) return absl::OkStatus();
  return NcclError(api_, function, result);
}

absl::Status Operations::CopyTo(const Tensor& to, const Tensor& from, const Part& part) {
  if (to.data() == from.data() || from.numel() == 0) return absl::OkStatus();
  return runtime_.Copy(to.data(), from.data(), from.nbytes(), *part.stream);
}

absl::StatusOr<char*> Operations::Scratch(const Part& part, size_t bytes) {
  Communicator& communicator = *part.communicator;
  // Parts of one ncclGroup have no order, so that each has memory of its own.
  const bool is_taken = std::find(taken_.begin(), taken_.end(), &communicator) != taken_.end();
  taken_.push_back(&communicator);
  if (is_captured_) {
    // Of its own, and as long as the communicator: each replay of the graph uses it again.
    SYNCLINE_ASSIGN_OR_RETURN(communicator.captured.emplace_back(),
                              runtime_.Allocate(communicator.device, bytes));
    return static_cast<char*>(communicator.captured.back().get());
  }
  if (is_taken || bytes > communicator.scratch_bytes || communicator.scratch == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<void> memory,
                              runtime_.Allocate(communicator.device, bytes));
    kept_.push_back(memory);
    if (is_taken || bytes > kKeptScratchBytes) return static_cast<char*>(memory.get());
    // What is enqueued may still use the old one: the calls that did keep it.
    communicator.scratch = std::move(memory);
    communicator.scratch_bytes = bytes;
  } else {
    kept_.push_back(communicator.scratch);
  }
  return static_cast<char*>(communicator.scratch.get());
}

absl::Status Operations::Group(absl::Span<Communicator* const> used,
                               absl::FunctionRef<absl::Status()> body) {
  if (used.empty()) return absl::OkStatus();
  {
    const Communicators::CallScope scope(communicators_, used[0]->device);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    SYNCLINE_RETURN_IF_ERROR(Check("ncclGroupStart", api_.group_start()));
    absl::Status status = body();
    const NcclResult ended = api_.group_end();
    if (status.ok()) status = Check("ncclGroupEnd", ended);
    SYNCLINE_RETURN_IF_ERROR(status);
  }
  return communicators_.Settle(used, call_);
}

absl::Status Operations::Enqueue(absl::Span<const Part> parts) {
  std::vector<const Part*> at_once, stepwise;
  std::vector<Communicator*> used;
  for (const Part& part : parts) {
    if (NeedsKernels(*part.collective, support_)) {
      stepwise.push_back(&part);
      continue;
    }
    at_once.push_back(&part);
    if (std::find(used.begin(), used.end(), part.communicator) == used.end()) {
      used.push_back(part.communicator);
    }
  }
  std::vector<Step> steps(at_once.size());
  absl::Status status;
  for (size_t i = 0; i < at_once.size() && status.ok(); ++i) {
    status = Prepare(*at_once[i], steps[i]);
  }
  if (status.ok()) {
    status = Group(used, [&]() -> absl::Status {
      for (size_t i = 0; i < at_once.size(); ++i) {
        SYNCLINE_RETURN_IF_ERROR(EnqueueInGroup(*at_once[i], steps[i]));
      }
      return absl::OkStatus();
    });
  }
  for (size_t i = 0; i < at_once.size(); ++i) {
    if (!steps[i].made_op.has_value()) continue;
    const Communicators::CallScope scope(communicators_, at_once[i]->communicator->device);
    if (!scope.status().ok()) continue;
    api_.red_op_destroy(*steps[i].made_op, at_once[i]->communicator->comm);
  }
  SYNCLINE_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < at_once.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(Finish(*at_once[i], steps[i]));
  }
  for (const Part* const part : stepwise) {
    taken_.clear();  // These follow each other on the stream.
    SYNCLINE_RETURN_IF_ERROR(EnqueueSteps(*part));
  }
  return absl::OkStatus();
}

absl::Status Operations::Prepare(const Part& part, Step& step) {
  const Collective& call = *part.collective;
  Communicator& communicator = *part.communicator;
  const auto size = static_cast<size_t>(group_.size());
  if (Reduces(call.kind)) {
    step.native = NativeReductionOf(call.dtype(), call.reduce_op, support_);
    if (step.native->premultiplies) {
      uint64_t scalar = ScalarOf(RealOf(call.dtype()), call.factor);
      const Communicators::CallScope scope(communicators_, communicator.device);
      SYNCLINE_RETURN_IF_ERROR(scope.status());
      SYNCLINE_RETURN_IF_ERROR(
          Check("ncclRedOpCreatePreMulSum",
                api_.red_op_create_pre_mul_sum(&step.native->op, &scalar, step.native->dtype,
                                               kNcclScalarHostImmediate, communicator.comm)));
      step.made_op = step.native->op;
    }
  }
  switch (call.kind) {
    case OpKind::kAllGather: {
      // NCCL gathers to one block. Whether the user's tensors are one may differ from rank to rank,
      // so it does not change what NCCL is asked for.
      if (!AreOfOneSize(call.outputs)) break;
      if (AreOneBlock(call.outputs)) {
        step.target = static_cast<char*>(call.outputs[0].data());
        break;
      }
      SYNCLINE_ASSIGN_OR_RETURN(step.target, Scratch(part, size * call.tensor->nbytes()));
      break;
    }
    case OpKind::kReduceScatter: {
      if (!AreOfOneSize(call.inputs)) break;
      if (AreOneBlock(call.inputs)) {
        step.source = call.inputs[0].data();
        break;
      }
      const size_t bytes = call.tensor->nbytes();
      SYNCLINE_ASSIGN_OR_RETURN(char* const block, Scratch(part, size * bytes));
      for (size_t i = 0; i < size && bytes > 0; ++i) {
        SYNCLINE_RETURN_IF_ERROR(
            runtime_.Copy(block + i * bytes, call.inputs[i].data(), bytes, *part.stream));
      }
      step.source = block;
      break;
    }
    case OpKind::kGather:
      if (group_.rank() != call.peer) break;
      return CopyTo(call.outputs[static_cast<size_t>(group_.rank())], *call.tensor, part);
    case OpKind::kScatter:
      if (group_.rank() != call.peer) break;
      return CopyTo(*call.tensor, call.inputs[static_cast<size_t>(group_.rank())], part);
    case OpKind::kAllToAll: {
      const auto rank = static_cast<size_t>(group_.rank());
      return CopyTo(call.outputs[rank], call.inputs[rank], part);
    }
    case OpKind::kSend: {
      step.source = call.tensor->data();
      if (call.tensor->device() == communicator.device || call.tensor->numel() == 0) break;
      SYNCLINE_ASSIGN_OR_RETURN(step.target, Scratch(part, call.tensor->nbytes()));
      step.source = step.target;
      return runtime_.Copy(step.target, call.tensor->data(), call.tensor->nbytes(), *part.stream);
    }
    case OpKind::kRecv: {
      step.target = static_cast<char*>(call.tensor->data());
      if (call.tensor->device() == communicator.device || call.tensor->numel() == 0) break;
      SYNCLINE_ASSIGN_OR_RETURN(step.target, Scratch(part, call.tensor->nbytes()));
      break;
    }
    default:
      break;
  }
  return absl::OkStatus();
}

absl::Status Operations::EnqueueInGroup(const Part& part, Step& step) {
  const Collective& call = *part.collective;
  const Communicator& communicator = *part.communicator;
  const NcclComm comm = communicator.comm;
  const NcclStream stream = part.stream->handle;
  switch (call.kind) {
    case OpKind::kBroadcast:
      if (call.tensor->numel() == 0) return absl::OkStatus();
      return Check("ncclBroadcast",
                   api_.broadcast(call.tensor->data(), call.tensor->data(), call.tensor->nbytes(),
                                  kNcclUint8, call.peer, comm, stream));
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      return EnqueueReduction(part, step);
    case OpKind::kAllGather:
      if (step.target == nullptr && AreOfOneSize(call.outputs)) return absl::OkStatus();
      if (AreOfOneSize(call.outputs)) {
        if (call.tensor->numel() == 0) return absl::OkStatus();
        return Check("ncclAllGather",
                     api_.all_gather(call.tensor->data(), step.target, call.tensor->nbytes(),
                                     kNcclUint8, comm, stream));
      }
      for (int rank = 0; rank < group_.size(); ++rank) {
        const Tensor& output = call.outputs[static_cast<size_t>(rank)];
        if (output.numel() == 0) continue;
        const void* const from = rank == group_.rank() ? call.tensor->data() : output.data();
        SYNCLINE_RETURN_IF_ERROR(Check(
            "ncclBroadcast",
            api_.broadcast(from, output.data(), output.nbytes(), kNcclUint8, rank, comm, stream)));
      }
      return absl::OkStatus();
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return EnqueueSplitMoves(part);
    case OpKind::kSend:
      if (call.tensor->numel() == 0) return absl::OkStatus();
      return Check("ncclSend",
                   api_.send(step.source, call.tensor->nbytes(), kNcclUint8, 1, comm, stream));
    case OpKind::kRecv:
      if (call.tensor->numel() == 0) return absl::OkStatus();
      return Check("ncclRecv",
                   api_.recv(step.target, call.tensor->nbytes(), kNcclUint8, 0, comm, stream));
    default:
      return absl::OkStatus();
  }
}

absl::Status Operations::EnqueueSplitMoves(const Part& part) {
  const Collective& call = *part.collective;
  const Communicator& communicator = *part.communicator;
  const auto give = [&](const Tensor& tensor, int to) {
    if (tensor.numel() == 0) return absl::OkStatus();
    return Check("ncclSend", api_.send(tensor.data(), tensor.nbytes(), kNcclUint8, to,
                                       communicator.comm, part.stream->handle));
  };
  const auto take = [&](const Tensor& tensor, int from) {
    if (tensor.numel() == 0) return absl::OkStatus();
    return Check("ncclRecv", api_.recv(tensor.data(), tensor.nbytes(), kNcclUint8, from,
                                       communicator.comm, part.stream->handle));
  };
  const bool is_root = group_.rank() == call.peer;
  if (call.kind == OpKind::kGather && !is_root) return give(*call.tensor, call.peer);
  if (call.kind == OpKind::kScatter && !is_root) return take(*call.tensor, call.peer);
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) continue;  // Copied by Prepare.
    const auto index = static_cast<size_t>(rank);
    if (call.kind != OpKind::kGather) SYNCLINE_RETURN_IF_ERROR(give(call.inputs[index], rank));
    if (call.kind != OpKind::kScatter) SYNCLINE_RETURN_IF_ERROR(take(call.outputs[index], rank));
  }
  return absl::OkStatus();
}

absl::Status Operations::EnqueueReduction(const Part& part, const Step& step) {
  const Collective& call = *part.collective;
  const NcclComm comm = part.communicator->comm;
  const NcclStream stream = part.stream->handle;
  const NativeReduction& native = *step.native;
  const auto count_of = [&](const Tensor& tensor) {
    return static_cast<size_t>(tensor.numel()) * static_cast<size_t>(native.elements);
  };
  void* const data = call.tensor->data();
  const size_t count = count_of(*call.tensor);
  if (call.kind == OpKind::kAllReduce) {
    if (count == 0) return absl::OkStatus();
    return Check("ncclAllReduce",
                 api_.all_reduce(data, data, count, native.dtype, native.op, comm, stream));
  }
  if (call.kind == OpKind::kReduce) {
    if (count == 0) return absl::OkStatus();
    return Check("ncclReduce",
                 api_.reduce(data, data, count, native.dtype, native.op, call.peer, comm, stream));
  }
  if (AreOfOneSize(call.inputs)) {
    if (count == 0) return absl::OkStatus();
    return Check("ncclReduceScatter", api_.reduce_scatter(step.source, data, count, native.dtype,
                                                          native.op, comm, stream));
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Tensor& input = call.inputs[static_cast<size_t>(rank)];
    if (input.numel() == 0) continue;
    void* const to = rank == group_.rank() ? data : input.data();
    SYNCLINE_RETURN_IF_ERROR(
        Check("ncclReduce", api_.reduce(input.data(), to, count_of(input), native.dtype, native.op,
                                        rank, comm, stream)));
  }
  return absl::OkStatus();
}

absl::Status Operations::Finish(const Part& part, const Step& step) {
  const Collective& call = *part.collective;
  const Communicator& communicator = *part.communicator;
  if (call.kind == OpKind::kAllGather && step.target != nullptr && !AreOneBlock(call.outputs)) {
    const size_t bytes = call.tensor->nbytes();
    for (size_t i = 0; i < call.outputs.size() && bytes > 0; ++i) {
      SYNCLINE_RETURN_IF_ERROR(
          runtime_.Copy(call.outputs[i].data(), step.target + i * bytes, bytes, *part.stream));
    }
  }
  if (call.kind == OpKind::kRecv && step.target != call.tensor->data()) {
    SYNCLINE_RETURN_IF_ERROR(
        runtime_.Copy(call.tensor->data(), step.target, call.tensor->nbytes(), *part.stream));
  }
  const bool has_result = call.kind != OpKind::kReduce || call.peer == group_.rank();
  if (step.native.has_value() && step.native->divides && has_result && call.tensor->numel() > 0) {
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                              runtime_.KernelsOf(communicator.device));
    return kernels->Divide(call.dtype(), call.tensor->data(), group_.size(), call.tensor->numel(),
                           *part.stream);
  }
  return absl::OkStatus();
}

absl::Status Operations::EnqueueSteps(const Part& part) {
  SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                            runtime_.KernelsOf(part.communicator->device));
  switch (part.collective->kind) {
    case OpKind::kReduceScatter:
      return ReduceScatterByKernels(part, *kernels);
    case OpKind::kScan:
    case OpKind::kExscan:
      return ScanByKernels(part, *kernels);
    default:
      return ReduceByKernels(part, *kernels);
  }
}

namespace {

// How many elements are gathered from each rank at once: the same on all ranks.
int64_t ChunkOf(DType dtype, int ranks) {
  const size_t bytes = kGatheredBytes / static_cast<size_t>(ranks) / kAlignment * kAlignment;
  return static_cast<int64_t>(std::max(bytes, kAlignment) / SizeOf(dtype));
}

// Bytes from the piece of one rank to that of the next.
size_t PieceBytes(DType dtype, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<const void*> PiecesIn(const char* block, size_t stride, int count) {
  std::vector<const void*> pieces;
  for (int i = 0; i < count; ++i) pieces.push_back(block + static_cast<size_t>(i) * stride);
  return pieces;
}

}  // namespace

// Of all_reduce and reduce: a chunk of each rank, to all or to the root, which reduces it.
absl::Status Operations::ReduceByKernels(const Part& part, const device::Kernels& kernels) {
  const Collective& call = *part.collective;
  Communicator& communicator = *part.communicator;
  const DType dtype = call.dtype();
  const int ranks = group_.size();
  const int64_t most = std::min(ChunkOf(dtype, ranks), call.tensor->numel());
  const size_t stride = PieceBytes(dtype, most);
  const bool is_reduced_here = call.kind == OpKind::kAllReduce || call.peer == group_.rank();
  char* block = nullptr;
  if (most > 0 && is_reduced_here) {
    SYNCLINE_ASSIGN_OR_RETURN(block, Scratch(part, stride * static_cast<size_t>(ranks)));
  }
  for (int64_t at = 0; at < call.tensor->numel(); at += most) {
    const int64_t count = std::min(most, call.tensor->numel() - at);
    const Tensor piece = call.tensor->Slice(at, count);
    SYNCLINE_RETURN_IF_ERROR(Group({&communicator}, [&]() -> absl::Status {
      for (int rank = 0; rank < ranks; ++rank) {
        if (call.kind == OpKind::kAllReduce || rank == call.peer) {
          SYNCLINE_RETURN_IF_ERROR(
              Check("ncclSend", api_.send(piece.data(), piece.nbytes(), kNcclUint8, rank,
                                          communicator.comm, part.stream->handle)));
        }
        if (is_reduced_here) {
          SYNCLINE_RETURN_IF_ERROR(Check(
              "ncclRecv", api_.recv(block + static_cast<size_t>(rank) * stride, piece.nbytes(),
                                    kNcclUint8, rank, communicator.comm, part.stream->handle)));
        }
      }
      return absl::OkStatus();
    }));
    if (!is_reduced_here) continue;
    SYNCLINE_RETURN_IF_ERROR(kernels.Reduce(dtype, call.reduce_op, piece.data(),
                                            PiecesIn(block, stride, ranks), count, *part.stream));
  }
  return absl::OkStatus();
}

// Each rank gets a chunk of its own part from all others, and reduces it.
absl::Status Operations::ReduceScatterByKernels(const Part& part, const device::Kernels& kernels) {
  const Collective& call = *part.collective;
  Communicator& communicator = *part.communicator;
  const DType dtype = call.dtype();
  const int ranks = group_.size();
  const int64_t chunk = ChunkOf(dtype, ranks);
  int64_t longest = 0;
  for (const Tensor& input : call.inputs) longest = std::max(longest, input.numel());
  const int64_t own = call.tensor->numel();
  const size_t stride = PieceBytes(dtype, std::min(chunk, own));
  char* block = nullptr;
  if (own > 0) {
    SYNCLINE_ASSIGN_OR_RETURN(block, Scratch(part, stride * static_cast<size_t>(ranks)));
  }
  for (int64_t at = 0; at < longest; at += chunk) {
    const auto count_of = [&](int64_t all) {
      return std::max<int64_t>(std::min(chunk, all - at), 0);
    };
    const int64_t count = count_of(own);
    SYNCLINE_RETURN_IF_ERROR(Group({&communicator}, [&]() -> absl::Status {
      for (int rank = 0; rank < ranks; ++rank) {
        const Tensor& input = call.inputs[static_cast<size_t>(rank)];
        if (const int64_t sent = count_of(input.numel()); sent > 0) {
          const Tensor piece = input.Slice(at, sent);
          SYNCLINE_RETURN_IF_ERROR(
              Check("ncclSend", api_.send(piece.data(), piece.nbytes(), kNcclUint8, rank,
                                          communicator.comm, part.stream->handle)));
        }
        if (count > 0) {
          SYNCLINE_RETURN_IF_ERROR(
              Check("ncclRecv", api_.recv(block + static_cast<size_t>(rank) * stride,
                                          static_cast<size_t>(count) * SizeOf(dtype), kNcclUint8,
                                          rank, communicator.comm, part.stream->handle)));
        }
      }
      return absl::OkStatus();
    }));
    if (count == 0) continue;
    SYNCLINE_RETURN_IF_ERROR(kernels.Reduce(dtype, call.reduce_op,
                                            call.tensor->Slice(at, count).data(),
                                            PiecesIn(block, stride, ranks), count, *part.stream));
  }
  return absl::OkStatus();
}

// Each rank sends its chunk to those after it, which reduce what comes before them.
absl::Status Operations::ScanByKernels(const Part& part, const device::Kernels& kernels) {
  const Collective& call = *part.collective;
  Communicator& communicator = *part.communicator;
  const DType dtype = call.dtype();
  const int rank = group_.rank(), ranks = group_.size();
  const bool is_premultiplied = call.reduce_op == ReduceOp::kPremulSum;
  const ReduceOp op = is_premultiplied ? ReduceOp::kSum : call.reduce_op;
  const int64_t most = std::min(ChunkOf(dtype, ranks), call.tensor->numel());
  const size_t stride = PieceBytes(dtype, most);
  // The pieces of the ranks before this one, and its own.
  char* block = nullptr;
  if (most > 0) {
    SYNCLINE_ASSIGN_OR_RETURN(block, Scratch(part, stride * static_cast<size_t>(rank + 1)));
  }
  for (int64_t at = 0; at < call.tensor->numel(); at += most) {
    const int64_t count = std::min(most, call.tensor->numel() - at);
    const Tensor piece = call.tensor->Slice(at, count);
    char* const own = block + static_cast<size_t>(rank) * stride;
    SYNCLINE_RETURN_IF_ERROR(runtime_.Copy(own, piece.data(), piece.nbytes(), *part.stream));
    if (is_premultiplied) {
      SYNCLINE_RETURN_IF_ERROR(kernels.Scale(dtype, own, call.factor, count, *part.stream));
    }
    SYNCLINE_RETURN_IF_ERROR(Group({&communicator}, [&]() -> absl::Status {
      for (int other = 0; other < ranks; ++other) {
        if (other > rank) {
          SYNCLINE_RETURN_IF_ERROR(
              Check("ncclSend", api_.send(own, piece.nbytes(), kNcclUint8, other, communicator.comm,
                                          part.stream->handle)));
        } else if (other < rank) {
          SYNCLINE_RETURN_IF_ERROR(Check(
              "ncclRecv", api_.recv(block + static_cast<size_t>(other) * stride, piece.nbytes(),
                                    kNcclUint8, other, communicator.comm, part.stream->handle)));
        }
      }
      return absl::OkStatus();
    }));
    const int inputs = call.kind == OpKind::kScan ? rank + 1 : rank;
    if (inputs == 0) continue;
    SYNCLINE_RETURN_IF_ERROR(kernels.Reduce(dtype, op, piece.data(),
                                            PiecesIn(block, stride, inputs), count, *part.stream));
  }
  return absl::OkStatus();
}

}  // namespace syncline::nccl
