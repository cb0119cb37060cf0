// What api/bindgen.py generates for Python.
#ifndef SYNCLINE_PYTHON_EXTENSION_DEFINE_API_H_
#define SYNCLINE_PYTHON_EXTENSION_DEFINE_API_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

namespace py = ::pybind11;

// Adds everything that api/syncline.pyi describes to `module`.
void DefineApi(py::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_DEFINE_API_H_
