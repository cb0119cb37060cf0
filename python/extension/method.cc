#include "python/extension/method.h"

#include <cxxabi.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "python/extension/errors.h"

namespace syncline::python {
namespace {

std::string Quoted(py::handle name) { return py::cast<std::string>(py::repr(name)); }

}  // namespace

Parameters::Parameters(const char* method, std::initializer_list<Parameter> parameters)
    : method_(method) {
  if (parameters.size() > kMostParameters) {
    py::pybind11_fail(absl::StrCat(method, " has too many parameters: raise kMostParameters"));
  }
  for (const Parameter& parameter : parameters) {
    auto name = py::reinterpret_steal<py::str>(PyUnicode_InternFromString(parameter.name));
    if (!name) throw py::error_already_set();
    known_.push_back({std::move(name), parameter.default_value});
  }
}

void Parameters::Bind(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
                      Values& values) const {
  const auto given = static_cast<size_t>(count);
  if (given > known_.size()) {
    RaiseMisfit(absl::StrCat(given, " arguments were given by position"));
  }
  for (size_t i = 0; i < known_.size(); ++i) values[i] = i < given ? arguments[i] : nullptr;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const keyword = PyTuple_GET_ITEM(keywords, i);
    const size_t index = IndexOf(keyword);
    if (index == known_.size()) RaiseMisfit(absl::StrCat("there is no ", Quoted(keyword)));
    if (values[index] != nullptr) RaiseMisfit(absl::StrCat(Quoted(keyword), " was given twice"));
    values[index] = arguments[count + i];
  }
  for (size_t i = given; i < known_.size(); ++i) {
    if (values[i] == nullptr) values[i] = known_[i].default_value.ptr();
    if (values[i] == nullptr) RaiseMisfit(absl::StrCat(Quoted(known_[i].name), " is missing"));
  }
}

size_t Parameters::IndexOf(PyObject* keyword) const {
  for (size_t i = 0; i < known_.size(); ++i) {  // Names in source code are interned, too.
    if (known_[i].name.ptr() == keyword) return i;
  }
  for (size_t i = 0; i < known_.size(); ++i) {
    if (PyUnicode_Compare(known_[i].name.ptr(), keyword) == 0) return i;
  }
  return known_.size();
}

void Parameters::RaiseMisfit(absl::string_view what) const {
  const std::string names =
      absl::StrJoin(known_, ", ", [](std::string* out, const Known& parameter) {
        absl::StrAppend(out, py::cast<std::string>(parameter.name),
                        parameter.default_value ? "=" : "");
      });
  RaiseTypeError(absl::StrCat(method_, "(", names, "): ", what));
}

PyObject* LeaveToPython() {
  try {
    throw;
  } catch (abi::__forced_unwind&) {  // The end of the thread, which is nobody's to stop.
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

void RaiseNoObject(PyTypeObject* type) {
  RaiseTypeError(absl::StrCat("this ", type->tp_name,
                              " was never made: use a function that returns one, not __new__"));
}

void AddDescriptor(py::handle type, const char* name, PyObject* descriptor) {
  const auto owned = py::reinterpret_steal<py::object>(descriptor);
  if (!owned) throw py::error_already_set();
  py::setattr(type, name, owned);
}

}  // namespace syncline::python
