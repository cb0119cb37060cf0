// Tensors from and to DLPack (https://dmlc.github.io/dlpack/latest/), the exchange format of
// NumPy, PyTorch, JAX and CuPy. No element is copied in either direction.
#ifndef SYNCLINE_DLPACK_H_
#define SYNCLINE_DLPACK_H_

#include "absl/status/statusor.h"
#include "syncline/tensor.h"

struct DLManagedTensor;

namespace syncline {

// Takes ownership of `managed`: its deleter runs when the last view of the result is gone, or at
// once on error. ArgumentError for a device or element type that Syncline does not know.
absl::StatusOr<Tensor> FromDLPack(DLManagedTensor* managed, Access access = Access::kReadWrite);

// A new managed tensor that shares `tensor`'s memory and owner. The caller owns it and frees it
// with its own deleter, on any thread.
DLManagedTensor* ToDLPack(const Tensor& tensor);

}  // namespace syncline

#endif  // SYNCLINE_DLPACK_H_
