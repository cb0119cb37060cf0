// The arguments of one call of Syncline's core, made of torch's tensors.
#ifndef SYNCLINE_TORCH_NATIVE_CALL_H_
#define SYNCLINE_TORCH_NATIVE_CALL_H_

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "c_api.h"
#include "work.h"

namespace syncline_torch {

inline std::optional<SynclineDType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Bool:
      return kSynclineBool;
    case at::ScalarType::Char:
      return kSynclineInt8;
    case at::ScalarType::Short:
      return kSynclineInt16;
    case at::ScalarType::Int:
      return kSynclineInt32;
    case at::ScalarType::Long:
      return kSynclineInt64;
    case at::ScalarType::Byte:
      return kSynclineUInt8;
    case at::ScalarType::UInt16:
      return kSynclineUInt16;
    case at::ScalarType::UInt32:
      return kSynclineUInt32;
    case at::ScalarType::UInt64:
      return kSynclineUInt64;
    case at::ScalarType::Half:
      return kSynclineFloat16;
    case at::ScalarType::BFloat16:
      return kSynclineBFloat16;
    case at::ScalarType::Float:
      return kSynclineFloat32;
    case at::ScalarType::Double:
      return kSynclineFloat64;
    case at::ScalarType::ComplexFloat:
      return kSynclineComplex64;
    case at::ScalarType::ComplexDouble:
      return kSynclineComplex128;
    case at::ScalarType::Float8_e4m3fn:
      return kSynclineFloat8E4M3;
    case at::ScalarType::Float8_e5m2:
      return kSynclineFloat8E5M2;
    default:
      return std::nullopt;
  }
}

// Whether the elements of `tensor` lie in memory of the host as its type, shape and strides say.
inline bool IsPlain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kSpecial(
      {c10::DispatchKey::Python, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
       c10::DispatchKey::ZeroTensor, c10::DispatchKey::Functionalize,
       c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         !tensor.key_set().has_any(kSpecial) && tensor.has_storage();
}

// Its memory as a type that can be moved, where Syncline does not know its own; rows of it are rows
// of the tensor.
inline at::Tensor Movable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::ScalarType::Float8_e4m3fnuz:
    case at::ScalarType::Float8_e5m2fnuz:
    case at::ScalarType::Float8_e8m0fnu:
      return tensor.view(at::ScalarType::Byte);
    case at::ScalarType::ComplexHalf:
      return at::view_as_real(tensor);
    default:
      return tensor;
  }
}

// Built by a call of the backend. Each function that takes a tensor returns false if the tensor is
// not for the core: then the operation is Python's.
class Call {
 public:
  explicit Call(SynclineOperation operation) { call_.operation = operation; }

  // What the operation moves, and what it reduces: of the latter, types that Syncline does not know
  // are refused. Those that are not contiguous have a stand-in, of which the values are copied back
  // if the operation writes to it.
  enum class Use { kMove, kReduce };
  bool AddOutput(const at::Tensor& tensor, Use use, bool is_written = true) {
    if (!IsPlain(tensor)) return false;
    if (is_written && !tensor.is_contiguous()) {
      return SharesNoMemory(tensor) && Add(outputs_, StandIn(tensor), use);
    }
    return Add(outputs_, tensor, use);
  }
  bool AddInput(const at::Tensor& tensor, Use use) {
    return IsPlain(tensor) && Add(inputs_, tensor, use);
  }
  // The elements in one dimension.
  bool AddFlatOutput(const at::Tensor& tensor, Use use) {
    if (!IsPlain(tensor) || !SharesNoMemory(tensor)) return false;
    const at::Tensor whole = tensor.is_contiguous() ? tensor : StandIn(tensor);
    return Add(outputs_, whole.detach().view(-1), use);
  }
  bool AddFlatInput(const at::Tensor& tensor, Use use) {
    return IsPlain(tensor) && Add(inputs_, tensor.detach().contiguous().view(-1), use);
  }
  // The parts of a tensor for each rank.
  bool AddPartsAsOutputs(const at::Tensor& tensor, int parts, Use use) {
    if (!IsPlain(tensor) || !SharesNoMemory(tensor)) return false;
    return AddParts(outputs_, tensor.is_contiguous() ? tensor : StandIn(tensor), parts, use);
  }
  bool AddPartsAsInputs(const at::Tensor& tensor, int parts, Use use) {
    return IsPlain(tensor) && AddParts(inputs_, tensor.detach().contiguous(), parts, use);
  }

  // False for a reduction that Syncline does not have.
  bool SetReduction(const c10d::ReduceOp& op) {
    call_.reduce_op = op.op_;  // Both number them alike.
    if (op.op_ < c10d::ReduceOp::PREMUL_SUM) return true;
    if (op.op_ > c10d::ReduceOp::PREMUL_SUM || op.supplement_ == nullptr) return false;
    const auto& factor = static_cast<const c10d::PreMulSumSupplement&>(*op.supplement_);
    call_.factor =
        factor.tensor_factor.defined() ? factor.tensor_factor.item<double>() : factor.double_factor;
    return true;
  }

  void SetPeer(int64_t peer) { call_.peer = peer; }
  void SetTag(int64_t tag) { call_.tag = tag; }
  // Borrows them.
  void SetSplits(const std::vector<int64_t>& of_output, const std::vector<int64_t>& of_input) {
    call_.output_splits = of_output.data();
    call_.output_split_count = of_output.size();
    call_.input_splits = of_input.data();
    call_.input_split_count = of_input.size();
  }
  void SetTimeout(int64_t nanoseconds) { call_.timeout_ns = nanoseconds; }

  const SynclineCall& Get() {
    call_.outputs = outputs_.data();
    call_.output_count = outputs_.size();
    call_.inputs = inputs_.data();
    call_.input_count = inputs_.size();
    return call_;
  }
  // The tensors that it reads and writes, which are to be kept as long.
  std::vector<at::Tensor> TakeTensors() {
    return std::vector<at::Tensor>(std::make_move_iterator(kept_.begin()),
                                   std::make_move_iterator(kept_.end()));
  }
  Copies& copies() { return copies_; }

 private:
  using List = c10::SmallVector<SynclineTensor, 2>;

  // Elements that expand() makes share their memory: Python says so.
  static bool SharesNoMemory(const at::Tensor& tensor) {
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (tensor.size(i) > 1 && tensor.stride(i) == 0) return false;
    }
    return true;
  }

  at::Tensor StandIn(const at::Tensor& tensor) {
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor copy = tensor.contiguous();
    copies_.emplace_back(tensor, copy);
    return copy;
  }

  bool Add(List& list, const at::Tensor& elements, Use use) {
    const std::optional<SynclineDType> dtype = DTypeOf(elements.scalar_type());
    if (dtype.has_value() && elements.is_contiguous()) return Note(list, elements, *dtype);
    if (!dtype.has_value() && use == Use::kReduce) return false;
    at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor moved = Movable(elements.contiguous());
    const std::optional<SynclineDType> moved_as = DTypeOf(moved.scalar_type());
    return moved_as.has_value() && Note(list, moved, *moved_as);
  }

  bool AddParts(List& list, const at::Tensor& tensor, int parts, Use use) {
    if (tensor.numel() % parts != 0) return false;
    const at::Tensor flat = tensor.detach().view(-1);
    if (!DTypeOf(flat.scalar_type()).has_value() && use == Use::kReduce) return false;
    const int64_t size = flat.numel() / parts;
    for (int i = 0; i < parts; ++i) {
      if (!Add(list, flat.narrow(0, i * size, size), use)) return false;
    }
    return true;
  }

  bool Note(List& list, const at::Tensor& tensor, SynclineDType dtype) {
    void* const data = tensor.data_ptr();
    if (data == nullptr && tensor.numel() > 0) return false;
    list.push_back({data, tensor.sizes().data(), static_cast<int32_t>(tensor.dim()), dtype});
    kept_.push_back(tensor);
    return true;
  }

  SynclineCall call_ = {0, 0, 1.0, -1, 0, -1, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0};
  List outputs_, inputs_;
  c10::SmallVector<at::Tensor, 2> kept_;
  Copies copies_;
};

}  // namespace syncline_torch

#endif  // SYNCLINE_TORCH_NATIVE_CALL_H_
