#include "python/extension/tensor_in.h"

#include <dlpack/dlpack.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/device/device_runtime.h"
#include "python/extension/dlpack_exchange.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/streams.h"
#include "python/extension/tensor_view.h"
#include "syncline/dlpack.h"
#include "syncline/dtype.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

[[noreturn]] void RaiseNoArray(absl::string_view argument, py::handle value) {
  RaiseTypeError(absl::StrCat(
      argument, " must be an array that shares its memory, not ", Py_TYPE(value.ptr())->tp_name,
      ": pass one of NumPy, PyTorch, JAX, CuPy, array.array or memoryview, such as "
      "numpy.asarray(x)"));
}

// `dtype` is the element type in its library's words.
[[noreturn]] void RaiseUnknownDType(absl::string_view argument, absl::string_view dtype) {
  const std::string known = absl::StrJoin(
      AllDTypes(), ", ", [](std::string* out, DType known) { absl::StrAppend(out, Name(known)); });
  RaiseTypeError(absl::StrCat(argument, " has elements of type ", dtype,
                              ", which cannot be communicated: convert it, as with x.astype(...), "
                              "to one of ",
                              known));
}

std::string DescribeDType(py::handle array, absl::string_view format) {
  if (!py::hasattr(array, "dtype")) return absl::StrCat("'", format, "' (buffer format)");
  return py::cast<std::string>(py::str(array.attr("dtype")));
}

// Whether `object` is a `type` of `module`; without importing it: then there is none.
bool IsInstance(py::handle object, const char* module, const char* type) {
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const found = PyDict_GetItemString(modules, module);  // Borrowed.
  return found != nullptr && py::hasattr(found, type) &&
         py::isinstance(object, py::handle(found).attr(type));
}

bool IsJax(py::handle array) {
  const auto module = py::cast<std::string>(py::str(py::type::handle_of(array).attr("__module__")));
  return module.rfind("jax", 0) == 0;  // jaxlib.xla_extension, jaxlib._jax, jax...
}

// ---- The buffer protocol ----

// What a tensor owns of the array; any thread may drop it.
struct Buffer {
  Py_buffer view = {};
  ~Buffer() {
    if (view.obj != nullptr) WithGil([this] { PyBuffer_Release(&view); });
  }
};

using Extents = absl::InlinedVector<int64_t, 4>;

template <typename... Sized>
std::optional<DType> OfSize(Py_ssize_t size, Sized... candidates) {
  for (DType dtype : {candidates...}) {
    if (static_cast<Py_ssize_t>(SizeOf(dtype)) == size) return dtype;
  }
  return std::nullopt;
}

// Formats are those of Python's struct module, with Z for complex numbers. The size is the
// buffer's own, since that of 'l' depends on who says it.
std::optional<DType> DTypeOfFormat(absl::string_view format, Py_ssize_t size) {
  if (!format.empty() && absl::string_view("@=<").find(format[0]) != absl::string_view::npos) {
    format.remove_prefix(1);
  }
  if (format == "Zf" || format == "Zd") {
    return OfSize(size, DType::kComplex64, DType::kComplex128);
  }
  if (format.size() != 1) return std::nullopt;
  switch (format[0]) {
    case '?':
      return OfSize(size, DType::kBool);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return OfSize(size, DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return OfSize(size, DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64);
    case 'e':
    case 'f':
    case 'd':
      return OfSize(size, DType::kFloat16, DType::kFloat32, DType::kFloat64);
  }
  return std::nullopt;
}

// Strides in elements; those that are not whole elements have no place in a Tensor.
Extents StridesOf(const Py_buffer& view, absl::string_view argument) {
  Extents strides;
  if (view.strides == nullptr) return strides;  // ctypes: contiguous.
  for (int i = 0; i < view.ndim; ++i) {
    if (view.itemsize == 0 || view.strides[i] % view.itemsize != 0) {
      RaiseValueError(absl::StrCat(argument,
                                   " has elements that do not lie at multiples of their "
                                   "size: pass a contiguous copy, such as "
                                   "numpy.ascontiguousarray(x)"));
    }
    strides.push_back(view.strides[i] / view.itemsize);
  }
  return strides;
}

// `known`, where given, is the type of the elements, whatever the buffer says.
Tensor FromBuffer(py::handle array, std::shared_ptr<Buffer> buffer, absl::string_view argument,
                  std::optional<DType> known = std::nullopt) {
  const Py_buffer& view = buffer->view;
  const absl::string_view format = view.format == nullptr ? "B" : view.format;
  const auto dtype = known.has_value() ? known : DTypeOfFormat(format, view.itemsize);
  if (!dtype.has_value()) RaiseUnknownDType(argument, DescribeDType(array, format));
  const absl::Span<const Py_ssize_t> shape(view.shape, static_cast<size_t>(view.ndim));
  const Extents strides = StridesOf(view, argument);
  const Access access = view.readonly != 0 ? Access::kReadOnly : Access::kReadWrite;
  void* const data = view.buf;
  return Tensor(data, *dtype, shape, strides, Device{}, std::move(buffer), access);
}

// Null, with no exception left behind, if `array` does not let its memory be seen.
std::shared_ptr<Buffer> GetBuffer(py::handle array) {
  auto buffer = std::make_shared<Buffer>();
  if (PyObject_GetBuffer(array.ptr(), &buffer->view, PyBUF_RECORDS_RO) == 0) return buffer;
  PyErr_Clear();
  return nullptr;
}

// ---- DLPack ----

[[noreturn]] void RaiseCause(absl::string_view argument, py::error_already_set& cause) {
  RaiseTypeError(
      absl::StrCat(argument, " cannot be shared: ", py::cast<std::string>(py::str(cause.value()))));
}

// `tensor` is what FromDLPack made of `array`.
Tensor CheckShared(absl::StatusOr<Tensor> tensor, py::handle array, absl::string_view argument) {
  if (!tensor.ok()) RaiseUnknownDType(argument, DescribeDType(array, "unknown"));
  if (tensor->data() == nullptr && tensor->numel() > 0) {
    RaiseTypeError(absl::StrCat(argument, " (", tensor->ToString(),
                                ") has no memory that could be shared: pass a real copy, such as "
                                "x.clone()"));
  }
  return *std::move(tensor);
}

// The number of the stream on which the library of `array` must see to it that the elements are
// ready: the call's of the device, which is the library's own if there is none yet.
int64_t ReadyOn(py::handle array, const Device& device) {
  const Stream own = StreamFor(device, StreamSourceOf(array));
  CallStreams* const call = CallStreams::Innermost();
  if (call == nullptr) return StreamNumber(own);
  call->Add(own);
  return StreamNumber(*call->Find(device));
}

// ---- __cuda_array_interface__, version 3: where DLPack does not serve ----

// The type in NumPy's array interface: byte order, kind, size.
std::optional<DType> DTypeOfTypestr(absl::string_view typestr) {
  if (typestr.size() != 3 && typestr.size() != 4) return std::nullopt;
  int size = 0;
  if (typestr[0] == '>' || !absl::SimpleAtoi(typestr.substr(2), &size)) return std::nullopt;
  switch (typestr[1]) {
    case 'b':
      return OfSize(size, DType::kBool);
    case 'i':
      return OfSize(size, DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64);
    case 'u':
      return OfSize(size, DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64);
    case 'f':
      return OfSize(size, DType::kFloat16, DType::kFloat32, DType::kFloat64);
    case 'c':
      return OfSize(size, DType::kComplex64, DType::kComplex128);
  }
  return std::nullopt;
}

// Strides in elements, of bytes.
Extents StridesOf(py::handle strides, size_t size, absl::string_view argument) {
  Extents result;
  if (strides.is_none()) return result;
  for (py::handle stride : strides) {
    const auto bytes = py::cast<int64_t>(stride);
    if (bytes % static_cast<int64_t>(size) != 0) {
      RaiseValueError(absl::StrCat(argument,
                                   " has elements that do not lie at multiples of their size: pass "
                                   "a contiguous copy"));
    }
    result.push_back(bytes / static_cast<int64_t>(size));
  }
  return result;
}

// The device of memory at `address`.
Device DeviceOf(uintptr_t address, absl::string_view argument) {
  if (address == 0) return {DeviceType::kCuda, 0};  // No elements: any device will do.
  const absl::StatusOr<device::DeviceRuntime*> runtime = device::DeviceRuntime::Get();
  RaiseIfError(runtime.status());
  const absl::StatusOr<Device> device =
      (*runtime)->DeviceOf(reinterpret_cast<const void*>(address));
  RaiseIfError(device.status());
  if (device->type == DeviceType::kCpu) {
    RaiseTypeError(absl::StrCat(argument,
                                " cannot be shared: the memory of its "
                                "__cuda_array_interface__ is the host's; pass it as an "
                                "array of NumPy"));
  }
  return *device;
}

Tensor ReadCudaArrayInterface(py::handle array, const py::dict& known, absl::string_view argument) {
  const auto get = [&known](const char* key) -> py::object {
    if (known.contains(key)) return known[key];
    return py::none();
  };
  if (!get("mask").is_none()) {
    RaiseTypeError(absl::StrCat(argument, " cannot be shared: it has a mask"));
  }
  const auto typestr = py::cast<std::string>(known["typestr"]);
  const std::optional<DType> dtype = DTypeOfTypestr(typestr);
  if (!dtype.has_value()) RaiseUnknownDType(argument, DescribeDType(array, typestr));
  Extents shape;
  for (py::handle length : py::cast<py::tuple>(known["shape"])) {
    shape.push_back(py::cast<int64_t>(length));
  }
  RaiseIfError(CheckShape(*dtype, shape));
  const Extents strides = StridesOf(get("strides"), SizeOf(*dtype), argument);
  if (!strides.empty() && strides.size() != shape.size()) {
    RaiseTypeError(absl::StrCat(argument, " cannot be shared: it has ", shape.size(),
                                " dimensions and ", strides.size(), " strides"));
  }
  const auto data = py::cast<std::pair<uintptr_t, bool>>(known["data"]);
  const Device device = DeviceOf(data.first, argument);
  ReadyOn(array, device);
  const py::object stream = get("stream");
  if (!stream.is_none()) {
    const auto number = py::cast<int64_t>(stream);
    if (number == 0) {
      RaiseTypeError(absl::StrCat(argument,
                                  " cannot be shared: stream 0 of its "
                                  "__cuda_array_interface__ is ambiguous; 1 and 2 are "
                                  "the default streams"));
    }
    AddArgumentStream(StreamOfNumber(device, number));
  }
  return Tensor(reinterpret_cast<void*>(data.first), *dtype, shape, strides, device,
                DroppedUnderGil(py::reinterpret_borrow<py::object>(array)),
                data.second ? Access::kReadOnly : Access::kReadWrite);
}

// Nothing if `array` has no such interface; it is only asked for where DLPack does not serve.
std::optional<Tensor> FromCudaArrayInterface(py::handle array, absl::string_view argument) {
  const py::object known = py::getattr(array, "__cuda_array_interface__", py::none());
  if (!py::isinstance<py::dict>(known)) return std::nullopt;
  try {
    return ReadCudaArrayInterface(array, known, argument);
  } catch (py::cast_error&) {
    RaiseTypeError(absl::StrCat(argument, " cannot be shared: its __cuda_array_interface__ is ",
                                py::cast<std::string>(py::repr(known))));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_KeyError)) throw;
    RaiseCause(argument, error);
  }
}

// ---- DLPack's first form ----

Tensor FromDLPackObject(py::object array, absl::string_view argument) {
  if (IsNegatedView(array)) {
    RaiseTypeError(absl::StrCat(argument,
                                " cannot be shared: its elements are those in memory, negated; "
                                "pass x.resolve_neg()"));
  }
  // PyTorch refuses to export what takes part in autograd; communication does not.
  if (py::getattr(array, "requires_grad", py::none()).is(py::bool_(true))) {
    array = array.attr("detach")();
  }
  absl::StatusOr<Tensor> tensor;
  try {
    const auto device = py::cast<std::pair<int, int>>(array.attr("__dlpack_device__")());
    if (device.first != kDLCPU && device.first != kDLCUDA && device.first != kDLCUDAHost) {
      RaiseTypeError(absl::StrCat(argument,
                                  " is on a device that Syncline does not know (DLPack's "
                                  "type ",
                                  device.first, "): move it to the CPU or to CUDA"));
    }
    py::object capsule;
    if (device.first == kDLCUDA) {
      const int64_t stream = ReadyOn(array, {DeviceType::kCuda, device.second});
      capsule = array.attr("__dlpack__")(py::arg("stream") = stream);
    } else {
      capsule = array.attr("__dlpack__")();
    }
    void* const managed = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
    if (managed == nullptr) throw py::error_already_set();
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");  // Ours now: its destructor lets it be.
    tensor = FromDLPack(static_cast<DLManagedTensor*>(managed),
                        IsJax(array) ? Access::kReadOnly : Access::kReadWrite);
  } catch (py::error_already_set& error) {
    if (auto other = FromCudaArrayInterface(array, argument)) return *std::move(other);
    RaiseCause(argument, error);
  }
  const Tensor shared = CheckShared(std::move(tensor), array, argument);
  // Some producers' deleters need the GIL.
  return Tensor(shared.data(), shared.dtype(), shared.shape(), shared.strides(), shared.device(),
                DroppedUnderGil(shared.owner()), shared.access());
}

}  // namespace

Tensor TensorFromPython(py::handle array, absl::string_view argument) {
  if (const Tensor* const tensor = TensorOfView(array)) return *tensor;
  if (PyObject_CheckBuffer(array.ptr()) != 0) {
    if (auto buffer = GetBuffer(array)) {
      const bool is_scalar = buffer->view.ndim == 0 && IsInstance(array, "numpy", "generic");
      if (is_scalar) RaiseNoArray(argument, array);
      return FromBuffer(array, std::move(buffer), argument);
    }
  }
  if (const auto exchanged = ExchangeArray(array)) {
    Tensor tensor = CheckShared(FromDLPack(exchanged->managed, exchanged->access), array, argument);
    if (tensor.device().type == DeviceType::kCuda) {
      AddArgumentStream(StreamFor(tensor.device(), exchanged->streams));
    }
    return tensor;
  }
  if (IsInstance(array, "numpy", "ndarray")) {
    // The buffer protocol has no names for these, but NumPy has, by ml_dtypes.
    const std::string name = DescribeDType(array, "");
    for (DType dtype : {DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (name != Name(dtype)) continue;
      py::object bits = array.attr("view")(SizeOf(dtype) == 1 ? "uint8" : "uint16");
      return FromBuffer(bits, GetBuffer(bits), argument, dtype);
    }
    RaiseUnknownDType(argument, name);
  }
  if (py::hasattr(array, "__dlpack__") && py::hasattr(array, "__dlpack_device__")) {
    return FromDLPackObject(py::reinterpret_borrow<py::object>(array), argument);
  }
  if (auto tensor = FromCudaArrayInterface(array, argument)) return *std::move(tensor);
  RaiseNoArray(argument, array);
}

}  // namespace syncline::python
