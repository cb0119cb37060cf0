#include "python/extension/errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

py::object DistErrorClass(const char* name) {
  return py::module_::import("syncline.errors").attr(name);
}

py::object ClassOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArgument:
      return py::reinterpret_borrow<py::object>(PyExc_ValueError);
    case ErrorKind::kType:
      return py::reinterpret_borrow<py::object>(PyExc_TypeError);
    case ErrorKind::kUnsupported:
      return py::reinterpret_borrow<py::object>(PyExc_NotImplementedError);
    case ErrorKind::kTimeout:
      return DistErrorClass("DistTimeoutError");
    case ErrorKind::kNetwork:
      return DistErrorClass("DistNetworkError");
    case ErrorKind::kStore:
      return DistErrorClass("DistStoreError");
    case ErrorKind::kBackend:
      return DistErrorClass("DistBackendError");
    case ErrorKind::kMismatch:
      return DistErrorClass("DistMismatchError");
    case ErrorKind::kInternal:
      break;
  }
  return DistErrorClass("DistError");
}

[[noreturn]] void Raise(py::handle type, absl::string_view message) {
  // Messages quote what users and peers said, which need not be UTF-8.
  auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  if (text) PyErr_SetObject(type.ptr(), text.ptr());
  throw py::error_already_set();
}

std::string TextOf(py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(object.ptr()));
  Py_ssize_t size = 0;
  const char* const data = text ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (data != nullptr) return std::string(data, size);
  PyErr_Clear();  // Its __str__ failed, or it has lone surrogates.
  return "(what it says cannot be read)";
}

}  // namespace

void RaiseIfError(const absl::Status& status) {
  if (status.ok()) return;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  Raise(ClassOf(KindOf(status)), status.message());
}

absl::Status StatusOf(py::error_already_set& error) {
  SYNCLINE_DCHECK(PyGILState_Check() != 0);
  const bool is_ours = error.matches(DistErrorClass("DistError"));
  const std::string text = TextOf(error.value());
  const std::string message =
      is_ours ? text : absl::StrCat(TextOf(error.type().attr("__name__")), ": ", text);
  if (error.matches(PyExc_KeyboardInterrupt)) {
    error.restore();
    return InterruptedError("interrupted by a signal");
  }
  if (error.matches(PyExc_TimeoutError)) return TimeoutError(message);
  if (error.matches(PyExc_ConnectionError)) return NetworkError(message);
  if (error.matches(PyExc_NotImplementedError)) return UnsupportedError(message);
  if (error.matches(DistErrorClass("DistStoreError"))) return StoreError(message);
  if (error.matches(DistErrorClass("DistMismatchError"))) return MismatchError(message);
  return BackendError(message);
}

void RaiseTypeError(absl::string_view message) { Raise(PyExc_TypeError, message); }

void RaiseValueError(absl::string_view message) { Raise(PyExc_ValueError, message); }

}  // namespace syncline::python
