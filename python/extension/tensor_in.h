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
// JAX arrays are Access::kReadOnly.
//
// Arrays on a CUDA device may also have __cuda_array_interface__ alone (Numba). Their stream
// becomes one of the CallStreams: PyTorch's and CuPy's current ones, and for others the default
// stream, which their library makes wait for the elements.
//
// Raises a TypeError that names `argument` for anything else, for unknown element types and for
// arrays whose elements do not lie in memory.
Tensor TensorFromPython(pybind11::handle array, absl::string_view argument);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_TENSOR_IN_H_
