#include "python/extension/gradient_hook.h"

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/method.h"
#include "python/extension/streams.h"
#include "python/extension/tensor_in.h"
#include "syncline/reducer.h"
#include "syncline/tensor.h"

namespace syncline::python {
namespace {

constexpr char kCapsule[] = "syncline.gradient_hook";
constexpr char kCame = 1;

struct GradientHook {
  std::shared_ptr<Reducer> reducer;
  int64_t index;
  py::bytearray is_open;
  py::bytearray came;
  py::object views;
  py::object fallback;
};

char* BytesOf(const py::bytearray& bytes) { return PyByteArray_AS_STRING(bytes.ptr()); }

py::object GradientOf(py::handle parameter) {
  static PyObject* const name = PyUnicode_InternFromString("grad");
  auto gradient = py::reinterpret_steal<py::object>(PyObject_GetAttr(parameter.ptr(), name));
  if (!gradient) throw py::error_already_set();
  return gradient;
}

// Whether the reducer has taken it.
bool Deliver(const GradientHook& hook, py::handle parameter) {
  const py::object gradient = GradientOf(parameter);
  const py::object view =
      hook.views.is_none() ? py::object() : py::object(hook.views[py::int_(hook.index)]);
  if (gradient.is_none()) return false;
  CallStreams streams;  // The gradient's library has a stream on which it is ready.
  const bool is_view = view.is(gradient);
  Tensor value;
  if (is_view) {
    AddKnownStreams();
  } else {
    value = TensorFromPython(gradient, "gradient");
  }
  const auto deliver = [&] {
    return is_view ? hook.reducer->MarkReady(hook.index)
                   : hook.reducer->CopyReady(hook.index, value);
  };
  const CallStreams::All taken = streams.Take();
  bool is_taken;
  {
    const GilReleased released;
    is_taken = OnStreams(taken.own, deliver).ok();
  }
  if (!is_taken || is_view) return is_taken;
  if (view) py::setattr(parameter, "grad", view);
  return true;
}

bool IsUsual(const GradientHook& hook) {
  return BytesOf(hook.is_open)[0] != 0 && BytesOf(hook.came)[hook.index] == 0;
}

bool TryToDeliver(const GradientHook& hook, py::handle parameter) {
  if (!IsUsual(hook)) return false;
  try {
    return Deliver(hook, parameter);
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError)) return false;
    throw;
  } catch (const py::builtin_exception&) {
    return false;
  }
}

PyObject* Call(PyObject* self, PyObject* parameter) {
  try {
    const auto& hook = *static_cast<GradientHook*>(PyCapsule_GetPointer(self, kCapsule));
    if (TryToDeliver(hook, parameter)) {
      BytesOf(hook.came)[hook.index] = kCame;
    } else {
      hook.fallback(py::handle(parameter));
    }
    Py_RETURN_NONE;
  } catch (...) {
    return LeaveToPython();
  }
}

PyMethodDef definition = {"gradient_hook", &Call, METH_O, nullptr};

py::object MakeHook(std::shared_ptr<Reducer> reducer, int64_t index, py::bytearray is_open,
                    py::bytearray came, py::object views, py::object fallback) {
  if (PyByteArray_GET_SIZE(is_open.ptr()) < 1 || index < 0 ||
      index >= PyByteArray_GET_SIZE(came.ptr())) {
    RaiseValueError("a gradient hook needs a byte for each parameter, and one for itself");
  }
  auto hook = std::make_unique<GradientHook>(GradientHook{std::move(reducer), index,
                                                          std::move(is_open), std::move(came),
                                                          std::move(views), std::move(fallback)});
  const py::capsule self(hook.release(), kCapsule, [](PyObject* capsule) {
    delete static_cast<GradientHook*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
  auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, self.ptr()));
  if (!function) throw py::error_already_set();
  return function;
}

}  // namespace

void DefineGradientHook(py::module_& module) {
  module.def("_gradient_hook", &MakeHook, py::arg("reducer"), py::arg("index"), py::arg("is_open"),
             py::arg("came"), py::arg("views"), py::arg("fallback"));
}

}  // namespace syncline::python
