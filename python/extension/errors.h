// absl::Status as exceptions of Python.
#ifndef SYNCLINE_PYTHON_EXTENSION_ERRORS_H_
#define SYNCLINE_PYTHON_EXTENSION_ERRORS_H_

#include <pybind11/pybind11.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline::python {

// Raises `status` as the exception of its ErrorKind (syncline/errors.py), with its message alone,
// and its ErrorOrigin as the attributes of a DistError; returns if it is OK. If Python already has
// an exception in flight, raises that one instead.
void RaiseIfError(const absl::Status& status);

// The other way round, for code of Python that C++ calls: the kind that fits `error`, a
// BackendError if none does, and its message, with its type unless that is one of syncline.errors,
// whose ranks it keeps. Ctrl-C stays in flight besides, so that RaiseIfError raises it. Requires
// the GIL.
absl::Status StatusOf(pybind11::error_already_set& error);

[[noreturn]] void RaiseTypeError(absl::string_view message);
[[noreturn]] void RaiseValueError(absl::string_view message);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_ERRORS_H_
