// Methods and properties of the extension's classes, as the interpreter calls its own: arguments
// come as they lie on its stack, without a tuple, a dict or a bound method in between.
#ifndef SYNCLINE_PYTHON_EXTENSION_METHOD_H_
#define SYNCLINE_PYTHON_EXTENSION_METHOD_H_

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "python/extension/streams.h"

namespace syncline::python {

namespace py = ::pybind11;

// What a method takes besides self.
struct Parameter {
  const char* name;
  py::object default_value = {};  // Its value where it is not given; null: it must be given.
};

inline constexpr size_t kMostParameters = 8;
using Values = std::array<PyObject*, kMostParameters>;  // One for each parameter; borrowed.

// Adds a method: `body(self, values)` returns a py::object or throws what pybind11 knows. A call
// that does not fit `parameters` raises a TypeError that says how. `name` and `doc` live as long
// as the process. `body` captures nothing, and each has a type of its own.
template <typename T, typename... Options, typename Body>
void DefineMethod(py::class_<T, Options...>& type, const char* name, const char* doc,
                  std::initializer_list<Parameter> parameters, Body body);

// The same for a property that is read only: `body(self)`.
template <typename T, typename... Options, typename Body>
void DefineProperty(py::class_<T, Options...>& type, const char* name, const char* doc, Body body);

// ---- Implementation ----

// Sorts the arguments of a method's calls.
class Parameters {
 public:
  Parameters(const char* method, std::initializer_list<Parameter> parameters);

  // As the interpreter passes arguments: `count` by position, then those that `keywords`, a tuple
  // or null, names.
  void Bind(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords, Values& values) const;

 private:
  struct Known {
    py::str name;
    py::object default_value;
  };

  size_t IndexOf(PyObject* keyword) const;
  [[noreturn]] void RaiseMisfit(absl::string_view what) const;

  const char* const method_;
  std::vector<Known> known_;
};

// For a `catch (...)`: leaves the exception that is being handled to Python. Returns null.
PyObject* LeaveToPython();

[[noreturn]] void RaiseNoObject(PyTypeObject* type);

// The interpreter has checked that `self` is one of the class or of a subclass.
template <typename T>
T& SelfOf(PyObject* self, const PyTypeObject* type) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  if (Py_TYPE(self) != type || !instance->simple_layout) return py::cast<T&>(py::handle(self));
  void* const object = instance->simple_value_holder[0];
  if (object == nullptr) RaiseNoObject(Py_TYPE(self));
  return *static_cast<T*>(object);
}

// The functions that the interpreter calls; their data differ by the type of `body`.
template <typename T, typename Body>
struct Method {
  static PyObject* Call(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* keywords) {
    try {
      const CallStreams streams;
      Values values;
      parameters->Bind(arguments, count, keywords, values);
      return (*body)(SelfOf<T>(self, type), values).release().ptr();
    } catch (...) {
      return LeaveToPython();
    }
  }

  static PyObject* Get(PyObject* self, void*) {
    try {
      return (*body)(SelfOf<T>(self, type)).release().ptr();
    } catch (...) {
      return LeaveToPython();
    }
  }

  static inline const PyTypeObject* type = nullptr;
  static inline const Parameters* parameters = nullptr;
  static inline const Body* body = nullptr;
};

void AddDescriptor(py::handle type, const char* name, PyObject* descriptor);

// What descriptors refer to is never freed: classes live as long as the process.
template <typename T, typename... Options, typename Body>
void DefineMethod(py::class_<T, Options...>& type, const char* name, const char* doc,
                  std::initializer_list<Parameter> parameters, Body body) {
  using Function = Method<T, Body>;
  auto* const class_object = reinterpret_cast<PyTypeObject*>(type.ptr());
  Function::type = class_object;
  Function::parameters = new Parameters(name, parameters);
  Function::body = new Body(std::move(body));
  auto* const call = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Function::Call));
  auto* const definition = new PyMethodDef{name, call, METH_FASTCALL | METH_KEYWORDS, doc};
  AddDescriptor(type, name, PyDescr_NewMethod(class_object, definition));
}

template <typename T, typename... Options, typename Body>
void DefineProperty(py::class_<T, Options...>& type, const char* name, const char* doc, Body body) {
  using Function = Method<T, Body>;
  auto* const class_object = reinterpret_cast<PyTypeObject*>(type.ptr());
  Function::type = class_object;
  Function::body = new Body(std::move(body));
  auto* const definition = new PyGetSetDef{name, &Function::Get, nullptr, doc, nullptr};
  AddDescriptor(type, name, PyDescr_NewGetSet(class_object, definition));
}

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_METHOD_H_
