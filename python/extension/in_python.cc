#include "python/extension/in_python.h"

#include <pybind11/pybind11.h>

#include <exception>
#include <optional>

#include "absl/strings/str_cat.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "syncline/status.h"

namespace syncline::python {

absl::Status InPython(absl::string_view what, absl::FunctionRef<absl::Status()> action) {
  absl::Status status;
  const bool entered = WithGil([&] {
    std::optional<pybind11::error_scope> in_flight;
    if (PyErr_Occurred() != nullptr) in_flight.emplace();
    try {
      status = action();
    } catch (pybind11::error_already_set& error) {
      status = Annotate(StatusOf(error), what);
    } catch (const std::exception& error) {  // Of pybind11.
      status = BackendError(absl::StrCat(what, ": ", error.what()));
    }
  });
  return entered ? status : BackendError(absl::StrCat(what, ": Python is exiting"));
}

}  // namespace syncline::python
