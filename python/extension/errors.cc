#include "python/extension/errors.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

py::object DistErrorClass(const char* name) {
  return py::module_::import("syncline.errors").attr(name);
}

py::object ClassOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArgument:
      return DistErrorClass("DistValueError");
    case ErrorKind::kType:
      return DistErrorClass("DistTypeError");
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

// Messages quote what users and peers said, which need not be UTF-8. Null, with an exception in
// flight, if there is no memory.
py::object Decode(absl::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

[[noreturn]] void Raise(py::handle type, absl::string_view message) {
  const py::object text = Decode(message);
  if (text) PyErr_SetObject(type.ptr(), text.ptr());
  throw py::error_already_set();
}

// Sets the attributes of a DistError.
void SetOrigin(const ErrorOrigin& origin, const py::object& error) {
  py::tuple ranks(origin.ranks.size());
  for (size_t i = 0; i < origin.ranks.size(); ++i) ranks[i] = origin.ranks[i];
  error.attr("ranks") = ranks;
  if (origin.operations.empty()) return;
  const py::object operation = Decode(origin.operations[0].name);
  if (!operation) throw py::error_already_set();
  error.attr("operation") = operation;
  error.attr("sequence") = origin.operations[0].sequence;
}

// PyTorch's words, which scripts look for.
constexpr absl::string_view kTimedOut = "Timed out: ";

std::string MessageOf(const absl::Status& status) {
  return absl::StrCat(KindOf(status) == ErrorKind::kTimeout ? kTimedOut : "", status.message());
}

// The ranks of a DistError; none if its attribute is something else.
std::vector<int> RanksIn(py::handle error) {
  std::vector<int> ranks;
  try {
    for (const py::handle rank : py::iter(error.attr("ranks"))) ranks.push_back(rank.cast<int>());
  } catch (const std::exception&) {
    return {};
  }
  return ranks;
}

std::string TextOf(py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(object.ptr()));
  Py_ssize_t size = 0;
  const char* const data = text ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (data != nullptr) return std::string(data, size);
  PyErr_Clear();  // Its __str__ failed, or it has lone surrogates.
  return "(what it says cannot be read)";
}

ErrorKind KindOfPython(py::error_already_set& error) {
  if (error.matches(PyExc_TimeoutError)) return ErrorKind::kTimeout;
  if (error.matches(PyExc_ConnectionError)) return ErrorKind::kNetwork;
  if (error.matches(PyExc_NotImplementedError)) return ErrorKind::kUnsupported;
  if (error.matches(DistErrorClass("DistStoreError"))) return ErrorKind::kStore;
  if (error.matches(DistErrorClass("DistMismatchError"))) return ErrorKind::kMismatch;
  return ErrorKind::kBackend;
}

}  // namespace

void RaiseIfError(const absl::Status& status) {
  if (status.ok()) return;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const py::object type = ClassOf(KindOf(status));
  const absl::optional<ErrorOrigin> origin = OriginOf(status);
  if (!origin.has_value() ||
      PyObject_IsSubclass(type.ptr(), DistErrorClass("DistError").ptr()) != 1) {
    Raise(type, MessageOf(status));
  }
  const py::object message = Decode(MessageOf(status));
  if (!message) throw py::error_already_set();
  const py::object error = type(message);
  SetOrigin(*origin, error);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

absl::Status StatusOf(py::error_already_set& error) {
  SYNCLINE_DCHECK(PyGILState_Check() != 0);
  if (error.matches(PyExc_KeyboardInterrupt)) {
    error.restore();
    return InterruptedError("interrupted by a signal");
  }
  const std::string text = TextOf(error.value());
  if (!error.matches(DistErrorClass("DistError"))) {
    return ErrorOfKind(KindOfPython(error),
                       absl::StrCat(TextOf(error.type().attr("__name__")), ": ", text));
  }
  absl::Status status = ErrorOfKind(KindOfPython(error), absl::StripPrefix(text, kTimedOut));
  std::vector<int> ranks = RanksIn(error.value());
  return ranks.empty() ? status : WithRanks(std::move(status), std::move(ranks));
}

void RaiseTypeError(absl::string_view message) { Raise(DistErrorClass("DistTypeError"), message); }

void RaiseValueError(absl::string_view message) {
  Raise(DistErrorClass("DistValueError"), message);
}

}  // namespace syncline::python
