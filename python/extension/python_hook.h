// Communication hooks that are written in Python.
#ifndef SYNCLINE_PYTHON_EXTENSION_PYTHON_HOOK_H_
#define SYNCLINE_PYTHON_EXTENSION_PYTHON_HOOK_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds to `module`, where DefineApi has been:
//
//   _comm_hook_from_function(name, function)  a CommHook that calls function(bucket, group) on a
//       thread of its own, for one bucket after another, in a group of its own; it returns when
//       bucket.buffer holds the average
//   _comm_hook_from_starter(name, function)   one that calls function(bucket, done) on the thread
//       that starts the bucket; done(error), with None or an exception, says from any thread that
//       it is over; only the first call counts
//
// What functions raise is the bucket's error, of the kind that fits its type. A `done` that is
// dropped without a call is an error too.
void DefineCommHooks(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PYTHON_HOOK_H_
