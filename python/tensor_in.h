// Arrays of Python as tensors.
#ifndef SYNCLINE_PYTHON_TENSOR_IN_H_
#define SYNCLINE_PYTHON_TENSOR_IN_H_

#include <pybind11/pybind11.h>

#include "absl/strings/string_view.h"
#include "core/tensor.h"

namespace syncline::python {

// The elements of `array` where they are: a TensorView, whatever has the buffer protocol (NumPy,
// array.array, memoryview, bytearray, ctypes), NumPy arrays of ml_dtypes.bfloat16, and whatever has
// __dlpack__ (PyTorch, JAX, CuPy). Nothing is copied; the array lives as long as the tensor's
// owner, which any thread may drop. Read-only memory and JAX arrays are Access::kReadOnly.
//
// Raises a TypeError that names `argument` for anything else and for unknown element types.
Tensor TensorFromPython(pybind11::handle array, absl::string_view argument);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_TENSOR_IN_H_
