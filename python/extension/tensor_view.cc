#include "python/extension/tensor_view.h"

#include <dlpack/dlpack.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "python/extension/errors.h"
#include "python/extension/streams.h"
#include "syncline/device.h"
#include "syncline/dlpack.h"
#include "syncline/dtype.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

PyTypeObject* view_type = nullptr;  // Set once, with the module.

// In the words of Python's struct module; null if it has none.
const char* FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "?";
    case DType::kInt8:
      return "b";
    case DType::kInt16:
      return "h";
    case DType::kInt32:
      return "i";
    case DType::kInt64:
      return "q";
    case DType::kUInt8:
      return "B";
    case DType::kUInt16:
      return "H";
    case DType::kUInt32:
      return "I";
    case DType::kUInt64:
      return "Q";
    case DType::kFloat16:
      return "e";
    case DType::kBFloat16:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return nullptr;
    case DType::kFloat32:
      return "f";
    case DType::kFloat64:
      return "d";
    case DType::kComplex64:
      return "Zf";
    case DType::kComplex128:
      return "Zd";
  }
  return nullptr;
}

int BufferError(absl::string_view message) {
  PyErr_SetString(PyExc_BufferError, std::string(message).c_str());
  return -1;
}

// What a Py_buffer points to besides the elements; the view frees it.
struct Extents {
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  // In bytes.
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  const Tensor& tensor = py::cast<const TensorView&>(py::handle(self)).tensor();
  const char* const format = FormatOf(tensor.dtype());
  view->obj = nullptr;
  if (tensor.device() != Device{}) {
    return BufferError(absl::StrCat("the elements are on ", ToString(tensor.device())));
  }
  if (format == nullptr) {
    return BufferError(absl::StrCat("the buffer protocol has no ", Name(tensor.dtype()),
                                    ": use numpy.asarray or DLPack"));
  }
  if ((flags & PyBUF_WRITABLE) != 0 && tensor.access() == Access::kReadOnly) {
    return BufferError("the elements are read-only");
  }
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !tensor.is_contiguous()) {
    return BufferError("the elements are not contiguous");
  }
  auto extents = std::make_unique<Extents>();
  const auto size = static_cast<Py_ssize_t>(SizeOf(tensor.dtype()));
  extents->shape.assign(tensor.shape().begin(), tensor.shape().end());
  for (int64_t stride : tensor.strides()) extents->strides.push_back(stride * size);
  view->buf = tensor.data();
  view->len = static_cast<Py_ssize_t>(tensor.nbytes());
  view->itemsize = size;
  view->readonly = tensor.access() == Access::kReadOnly ? 1 : 0;
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->ndim = static_cast<int>(extents->shape.size());
  view->shape = (flags & PyBUF_ND) != 0 ? extents->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? extents->strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = extents.release();
  view->obj = Py_NewRef(self);
  return 0;
}

void ReleaseBuffer(PyObject*, Py_buffer* view) { delete static_cast<Extents*>(view->internal); }

// numpy.asarray calls it where the buffer protocol has no word for the element type.
py::object ToArray(const py::object& self, const py::args&, const py::kwargs&) {
  const Tensor& tensor = py::cast<const TensorView&>(self).tensor();
  py::module_ numpy = py::module_::import("numpy");
  if (FormatOf(tensor.dtype()) != nullptr) return numpy.attr("asarray")(py::memoryview(self));
  const std::string name(Name(tensor.dtype()));
  const Tensor bits(tensor.data(), SizeOf(tensor.dtype()) == 1 ? DType::kUInt8 : DType::kUInt16,
                    tensor.shape(), tensor.strides(), tensor.device(), tensor.owner(),
                    tensor.access());
  return numpy.attr("asarray")(TensorView(bits))
      .attr("view")(py::module_::import("ml_dtypes").attr(name.c_str()));
}

std::pair<int, int> DLPackDevice(const TensorView& view) {
  const Device& device = view.tensor().device();
  return {device.type == DeviceType::kCpu ? kDLCPU : kDLCUDA, device.index};
}

// Makes the stream with this number wait for the one on which elements of ours are ready.
void AwaitView(const Device& device, int64_t number) {
  const Stream ready = ViewStream(device), consumer = StreamOfNumber(device, number);
  if (number != -1 && consumer != ready) RaiseIfError(Join(ready, consumer));
}

// The standard lets the producer answer with the oldest form of the capsule, which all consumers
// read. It cannot say "read-only".
//
// The consumer's `stream`, of a device: it waits for this thread's current one. -1: it does not.
py::object ToDLPackCapsule(const TensorView& view, const py::object& stream,
                           const py::object& /*max_version*/, const py::object& device,
                           const py::object& copy) {
  const bool moves =
      !device.is_none() && py::cast<std::pair<int, int>>(device) != DLPackDevice(view);
  const bool copies = !copy.is_none() && py::cast<bool>(copy);
  if (moves || copies || view.tensor().access() == Access::kReadOnly) {
    BufferError(moves || copies ? "a TensorView shares its memory only: it neither copies nor moves"
                                : "DLPack cannot share read-only memory");
    throw py::error_already_set();
  }
  if (view.tensor().device().type == DeviceType::kCuda) {
    AwaitView(view.tensor().device(), stream.is_none() ? 1 : py::cast<int64_t>(stream));
  }
  auto free_unused = [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // A consumer has taken it over.
    auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  };
  return py::reinterpret_steal<py::object>(
      PyCapsule_New(ToDLPack(view.tensor()), "dltensor", free_unused));
}

}  // namespace

const Tensor* TensorOfView(py::handle object) {
  if (PyObject_TypeCheck(object.ptr(), view_type) == 0) return nullptr;
  return &py::cast<const TensorView&>(object).tensor();
}

void DefineTensorView(py::module_& module) {
  // pybind11's own buffer support knows neither read-only memory nor refusals.
  const auto set_up_type = py::custom_type_setup([](PyHeapTypeObject* type) {
    // One that Python makes by TensorView.__new__ would hold no tensor.
    type->ht_type.tp_flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
    type->ht_type.tp_new = nullptr;
    type->as_buffer.bf_getbuffer = &GetBuffer;
    type->as_buffer.bf_releasebuffer = &ReleaseBuffer;
    type->ht_type.tp_as_buffer = &type->as_buffer;
  });
  py::class_<TensorView> view(module, "TensorView", set_up_type,
                              "An array that Syncline owns, shared through the buffer protocol "
                              "and DLPack: numpy.asarray(view) or torch.from_dlpack(view) copy "
                              "nothing.");
  view_type = reinterpret_cast<PyTypeObject*>(view.ptr());
  view.def("__array__", &ToArray)
      .def("__dlpack__", &ToDLPackCapsule, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__dlpack_device__", &DLPackDevice)
      .def_property_readonly(
          "shape",
          [](const TensorView& view) {
            py::list shape;
            for (int64_t length : view.tensor().shape()) shape.append(length);
            return py::tuple(shape);
          },
          "The length of each dimension.")
      .def_property_readonly(
          "dtype", [](const TensorView& view) { return std::string(Name(view.tensor().dtype())); },
          "The name of the element type, such as \"float32\".")
      .def("__repr__", [](const TensorView& view) {
        return absl::StrCat("TensorView(", view.tensor().ToString(), ")");
      });
}

}  // namespace syncline::python
