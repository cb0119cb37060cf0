// Tensors as arrays of Python.
#ifndef SYNCLINE_PYTHON_EXTENSION_TENSOR_VIEW_H_
#define SYNCLINE_PYTHON_EXTENSION_TENSOR_VIEW_H_

#include <pybind11/pybind11.h>

#include <utility>

#include "syncline/tensor.h"

namespace syncline::python {

// What Python gets for a Tensor: an object that numpy.asarray, memoryview, torch.from_dlpack and
// the like turn into an array over the same memory.
class TensorView {
 public:
  explicit TensorView(Tensor tensor) : tensor_(std::move(tensor)) {}
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
};

// The tensor of a TensorView; null if `object` is something else.
const Tensor* TensorOfView(pybind11::handle object);

// Adds the class to `module`.
void DefineTensorView(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_TENSOR_VIEW_H_
