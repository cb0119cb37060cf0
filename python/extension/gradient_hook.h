// How torch's autograd hands a gradient to a reducer without running Python code.
#ifndef SYNCLINE_PYTHON_EXTENSION_GRADIENT_HOOK_H_
#define SYNCLINE_PYTHON_EXTENSION_GRADIENT_HOOK_H_

#include <pybind11/pybind11.h>

namespace syncline::python {

// Adds _gradient_hook(reducer, index, is_open, came, views, fallback), which makes a function for
// register_post_accumulate_grad_hook. Called with a parameter, it copies parameter.grad to the
// place of gradient `index`, marks it ready and sets came[index] to 1. If `views` is a list, the
// gradient then becomes views[index].
//
// Whatever is not as usual is left to fallback(parameter): when is_open[0] is 0, when came[index]
// is not 0, and when the gradient cannot be copied as it lies. `is_open` and `came` are bytearrays.
void DefineGradientHook(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_GRADIENT_HOOK_H_
