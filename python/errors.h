// absl::Status as exceptions of Python.
#ifndef SYNCLINE_PYTHON_ERRORS_H_
#define SYNCLINE_PYTHON_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline::python {

// Raises `status` as the exception of its ErrorKind (syncline/errors.py), with its message alone;
// returns if it is OK. If Python already has an exception in flight, raises that one instead.
void RaiseIfError(const absl::Status& status);

[[noreturn]] void RaiseTypeError(absl::string_view message);
[[noreturn]] void RaiseValueError(absl::string_view message);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_ERRORS_H_
