// What the native backend of torch.distributed calls: the table of
// python/syncline/torch/native/c_api.h.
#ifndef SYNCLINE_PYTHON_EXTENSION_C_API_H_
#define SYNCLINE_PYTHON_EXTENSION_C_API_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds `_c_api()` to `module`, which returns the table in a capsule.
void DefineCApi(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_C_API_H_
