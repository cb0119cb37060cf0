// Arrays of Python as tensors.
#ifndef SYNCLINE_PYTHON_EXTENSION_TENSOR_IN_H_
#define SYNCLINE_PYTHON_EXTENSION_TENSOR_IN_H_

#include <pybind11/pybind11.h>

#include "absl/strings/string_view.h"
#include "syncline/tensor.h"

namespace syncline::python {

// The elements of `array` where they are: a TensorView, whatever has the buffer protocol (NumPy,
// array.array, memoryview, bytearray, ctypes), NumPy arrays of ml_dtypes' bfloat16 and float8, and
// whatever has
// __dlpack__ (PyTorch, JAX, CuPy), by its C exchange API where the type has one. Nothing is copied;
// the array lives as long as the tensor's owner, which any thread may drop. Read-only memory and
// JAX arrays are Access::kReadOnly. Work that is queued on a CUDA stream is not waited for.
//
// Raises a TypeError that names `argument` for anything else, for unknown element types and for
// arrays whose elements do not lie in memory.
Tensor TensorFromPython(pybind11::handle array, absl::string_view argument);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_TENSOR_IN_H_
