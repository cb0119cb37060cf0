#include "python/extension/dlpack_exchange.h"

#include <dlpack/dlpack.h>

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "python/extension/gil.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

constexpr char kAttribute[] = "__dlpack_c_exchange_api__";
constexpr char kCapsule[] = "dlpack_exchange_api";

// What DLPack 1.3 lays down, by the header that we build with only as far as it goes.
constexpr uint32_t kMajorVersion = 1;
constexpr uint64_t kReadOnlyFlag = 1;
constexpr uint64_t kIsCopiedFlag = 2;

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct VersionedTensor {
  Version version;
  void* manager_ctx;
  void (*deleter)(VersionedTensor* self);  // Up to here the same in all major versions.
  uint64_t flags;
  DLTensor dl_tensor;
};

using ExportFunction = int (*)(void* array, VersionedTensor** tensor);

struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  // The table for an older major version.
  void (*allocate)();     // Not called, as are the next but one and the one behind it.
  ExportFunction export_array;
  void (*to_python)();
  void (*lend)();
  StreamSource::Function current_stream;
};

// What is known of a type.
struct TypeInfo {
  ExportFunction export_array = nullptr;
  StreamSource streams;
  bool has_is_neg = false;
};

// The interpreter's own cache answers, after the first time.
py::object AttributeOf(PyTypeObject* type, const char* name) {
  return py::getattr(py::handle(reinterpret_cast<PyObject*>(type)), name, py::object());
}

bool Defines(PyTypeObject* type, const char* name) {
  return type->tp_dict != nullptr && PyDict_GetItemString(type->tp_dict, name) != nullptr;
}

// Whether a subclass of the class that has the table sees to it in Python that others get something
// else than its base's memory. PyTorch's own way to say that it does not is a function of C.
bool IsRedirected(PyTypeObject* type) {
  for (py::handle base : py::reinterpret_borrow<py::tuple>(type->tp_mro)) {
    auto* const class_object = reinterpret_cast<PyTypeObject*>(base.ptr());
    if (Defines(class_object, kAttribute)) return false;
    if (Defines(class_object, "__dlpack__") || Defines(class_object, "__torch_dispatch__")) {
      return true;
    }
    if (Defines(class_object, "__torch_function__") &&
        PyCFunction_Check(PyDict_GetItemString(class_object->tp_dict, "__torch_function__")) == 0) {
      return true;
    }
  }
  return true;  // It is an attribute of the metaclass.
}

// Null if there is none.
const ExchangeApi* ExchangeApiOf(PyTypeObject* type) {
  const py::object capsule = AttributeOf(type, kAttribute);
  if (!capsule || PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0 || IsRedirected(type)) {
    return nullptr;
  }
  auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (api != nullptr && api->version.major != kMajorVersion) api = api->previous;
  return api;
}

// Of each type is asked once. Types are not kept alive: the entry of one that goes, goes first.
const TypeInfo& InfoOf(PyTypeObject* type) {
  static auto* const known = new absl::flat_hash_map<PyTypeObject*, TypeInfo>;
  const auto found = known->find(type);
  if (found != known->end()) return found->second;
  TypeInfo info;
  if (const ExchangeApi* const api = ExchangeApiOf(type)) {
    info.export_array = api->export_array;
    info.streams.function = api->current_stream;
  }
  info.has_is_neg = static_cast<bool>(AttributeOf(type, "is_neg"));
  py::weakref(reinterpret_cast<PyObject*>(type), py::cpp_function([type](py::handle reference) {
                known->erase(type);
                reference.dec_ref();
              }))
      .release();
  return (*known)[type] = info;
}

bool IsTrue(py::handle array, PyObject* method) {
  const auto result =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(array.ptr(), method));
  if (!result) PyErr_Clear();
  return result.ptr() == Py_True;
}

void Free(VersionedTensor* tensor) {
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

// Whether its elements are what lies in memory, of the CPU or CUDA. __dlpack__ refuses the others.
bool IsReadAsItLies(const VersionedTensor& tensor, py::handle array) {
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  const int device = tensor.dl_tensor.device.device_type;
  if (device != kDLCPU && device != kDLCUDA && device != kDLCUDAHost) return false;
  return tensor.dl_tensor.dtype.code != kDLComplex || !IsTrue(array, is_conj);
}

// The same in the form of before version 1.
struct Adapter {
  DLManagedTensor managed = {};
  VersionedTensor* source = nullptr;
};

DLManagedTensor* Adapt(VersionedTensor* tensor) {
  auto adapter = std::make_unique<Adapter>();
  adapter->source = tensor;
  adapter->managed.dl_tensor = tensor->dl_tensor;
  adapter->managed.manager_ctx = adapter.get();
  adapter->managed.deleter = [](DLManagedTensor* self) {
    const std::unique_ptr<Adapter> owned(static_cast<Adapter*>(self->manager_ctx));
    WithGil([&owned] { Free(owned->source); });  // Some libraries need it for that.
  };
  return &adapter.release()->managed;
}

}  // namespace

std::optional<ExchangedArray> ExchangeArray(py::handle array) {
  const TypeInfo info = InfoOf(Py_TYPE(array.ptr()));
  const ExportFunction export_array = info.export_array;
  if (export_array == nullptr || IsNegatedView(array)) return std::nullopt;
  VersionedTensor* tensor = nullptr;
  if (export_array(array.ptr(), &tensor) != 0 || tensor == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (tensor->version.major != kMajorVersion || !IsReadAsItLies(*tensor, array)) {
    Free(tensor);
    return std::nullopt;
  }
  const bool is_written_in_vain = (tensor->flags & (kReadOnlyFlag | kIsCopiedFlag)) != 0;
  return ExchangedArray{Adapt(tensor), is_written_in_vain ? Access::kReadOnly : Access::kReadWrite,
                        info.streams};
}

bool IsNegatedView(py::handle array) {
  static PyObject* const method = PyUnicode_InternFromString("is_neg");
  return InfoOf(Py_TYPE(array.ptr())).has_is_neg && IsTrue(array, method);
}

}  // namespace syncline::python
