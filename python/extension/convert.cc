#include "python/extension/convert.h"

#include <datetime.h>

#include "absl/strings/str_join.h"
#include "python/extension/tensor_in.h"
#include "python/extension/tensor_view.h"

namespace syncline::python {
namespace {

// Python's datetime types; PyDateTimeAPI is a variable of this file.
void ImportDateTime() {
  if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
  if (PyDateTimeAPI == nullptr) throw py::error_already_set();
}

}  // namespace

void RaiseWrongType(absl::string_view argument, absl::string_view wanted, py::handle value,
                    absl::string_view hint) {
  RaiseTypeError(absl::StrCat(argument, " must be ", wanted, ", not ",
                              Py_TYPE(value.ptr())->tp_name, hint.empty() ? "" : ": ", hint));
}

bool Converter<bool>::From(py::handle value, absl::string_view argument) {
  if (!PyBool_Check(value.ptr())) RaiseWrongType(argument, "a bool", value);
  return value.ptr() == Py_True;
}

int64_t Converter<int64_t>::From(py::handle value, absl::string_view argument) {
  // __index__ lets NumPy's integers in and keeps floats out.
  auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    PyErr_Clear();
    RaiseWrongType(argument, "an int", value);
  }
  int overflow = 0;
  const int64_t result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    RaiseValueError(absl::StrCat(argument, " must fit in 64 bits, not ",
                                 py::cast<std::string>(py::str(index))));
  }
  return result;
}

int Converter<int>::From(py::handle value, absl::string_view argument) {
  const int64_t wide = FromPython<int64_t>(value, argument);
  const int result = static_cast<int>(wide);
  if (result != wide) {
    RaiseValueError(absl::StrCat(argument, " must fit in 32 bits, not ", wide));
  }
  return result;
}

double Converter<double>::From(py::handle value, absl::string_view argument) {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    RaiseWrongType(argument, "a float", value);
  }
  return result;
}

std::string Converter<std::string>::From(py::handle value, absl::string_view argument) {
  if (!PyUnicode_Check(value.ptr())) RaiseWrongType(argument, "a str", value);
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) throw py::error_already_set();  // Lone surrogates.
  return std::string(text, size);
}

py::object Converter<std::string>::To(absl::string_view value) {
  auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      value.data(), static_cast<Py_ssize_t>(value.size()), "backslashreplace"));
  if (!text) throw py::error_already_set();
  return text;
}

std::string Converter<Bytes>::From(py::handle value, absl::string_view argument) {
  if (PyUnicode_Check(value.ptr())) {
    RaiseWrongType(argument, "bytes", value, "encode it, as in \"text\".encode()");
  }
  if (!PyBytes_Check(value.ptr())) RaiseWrongType(argument, "bytes", value);
  return std::string(PyBytes_AS_STRING(value.ptr()), PyBytes_GET_SIZE(value.ptr()));
}

absl::Duration Converter<absl::Duration>::From(py::handle value, absl::string_view argument) {
  ImportDateTime();
  if (!PyDelta_Check(value.ptr())) {
    RaiseWrongType(argument, "a datetime.timedelta", value, "pass datetime.timedelta(seconds=...)");
  }
  return absl::Hours(24 * static_cast<int64_t>(PyDateTime_DELTA_GET_DAYS(value.ptr()))) +
         absl::Seconds(PyDateTime_DELTA_GET_SECONDS(value.ptr())) +
         absl::Microseconds(PyDateTime_DELTA_GET_MICROSECONDS(value.ptr()));
}

py::object Converter<absl::Duration>::To(absl::Duration value) {
  ImportDateTime();
  constexpr int64_t kDays = 999999999;  // timedelta.max, which also stands for infinity.
  absl::Duration rest = value;
  const int64_t days = absl::IDivDuration(value, absl::Hours(24), &rest);
  if (days > kDays) return py::module_::import("datetime").attr("timedelta").attr("max");
  const int64_t seconds = absl::IDivDuration(rest, absl::Seconds(1), &rest);
  PyObject* const delta = PyDelta_FromDSU(static_cast<int>(days), static_cast<int>(seconds),
                                          static_cast<int>(absl::ToInt64Microseconds(rest)));
  if (delta == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(delta);
}

Tensor Converter<Tensor>::From(py::handle value, absl::string_view argument) {
  return TensorFromPython(value, argument);
}

py::object Converter<Tensor>::To(Tensor value) { return py::cast(TensorView(std::move(value))); }

std::vector<py::object> Items(py::handle list, absl::string_view argument) {
  const bool is_text = PyUnicode_Check(list.ptr()) || PyBytes_Check(list.ptr());
  if (is_text || !PySequence_Check(list.ptr())) RaiseWrongType(argument, "a list", list);
  auto items = py::reinterpret_steal<py::object>(PySequence_Fast(list.ptr(), ""));
  if (!items) throw py::error_already_set();
  std::vector<py::object> result;
  result.reserve(static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    result.push_back(py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(items.ptr(), i)));
  }
  return result;
}

EnumInPython MakeEnum(py::module_& module, const char* name,
                      std::initializer_list<const char*> members, const char* doc) {
  py::list pairs;
  for (const char* member : members) pairs.append(py::make_tuple(member, pairs.size()));
  py::object enum_class = py::module_::import("enum").attr("Enum")(
      name, pairs, py::arg("module") = module.attr("__name__"));
  enum_class.attr("__doc__") = doc;
  module.attr(name) = enum_class;
  EnumInPython known;
  for (py::handle member : enum_class) known.members.push_back(member.inc_ref());
  known.type = enum_class.release();
  return known;
}

int64_t EnumValue(py::handle member, const EnumInPython& known, absl::string_view argument) {
  for (size_t i = 0; i < known.members.size(); ++i) {  // Members are equal if they are the same.
    if (known.members[i].is(member)) return static_cast<int64_t>(i);
  }
  const std::string names = absl::StrJoin(known.members, ", ", [](std::string* out, py::handle m) {
    absl::StrAppend(out, py::cast<std::string>(py::str(m)));
  });
  RaiseWrongType(argument, absl::StrCat("a ", py::cast<std::string>(known.type.attr("__name__"))),
                 member, absl::StrCat("one of ", names));
}

}  // namespace syncline::python
