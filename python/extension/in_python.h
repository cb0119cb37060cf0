// Calls of Python from threads of C++.
#ifndef SYNCLINE_PYTHON_EXTENSION_IN_PYTHON_H_
#define SYNCLINE_PYTHON_EXTENSION_IN_PYTHON_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline::python {

// Runs `action` with the GIL held; what it raises becomes the status, behind "`what`: ". An
// exception that this thread has in flight already stays. BackendError once Python is exiting.
absl::Status InPython(absl::string_view what, absl::FunctionRef<absl::Status()> action);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_IN_PYTHON_H_
