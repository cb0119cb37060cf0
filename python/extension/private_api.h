// What the package syncline needs of C++ and the description of the public API does not have.
#ifndef SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_
#define SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds to `module`, where DefineApi has been:
//
//   Work._on_complete(callback)  calls it, once and without arguments, when the operation has
//                                finished: now, or on the thread of C++ that finishes it
//   _task_local_rank()           this process's rank among those of its host, by the launcher that
//                                has started it (see core/join/cluster_task.h); None if it does not
//                                say
//   _empty_shared(shape, dtype)  a new tensor that peers can map: see include/syncline/shared_memory.h
//   _parts(array, count)         `count` equal parts of a contiguous array, one-dimensional views
void DefinePrivateApi(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PRIVATE_API_H_
