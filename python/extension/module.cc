// The extension module syncline._syncline.
#include <pybind11/pybind11.h>

#include "python/extension/c_api.h"
#include "python/extension/define_api.h"
#include "python/extension/gil.h"
#include "python/extension/gradient_hook.h"
#include "python/extension/private_api.h"
#include "python/extension/python_backend.h"
#include "python/extension/python_hook.h"
#include "python/extension/python_store.h"
#include "python/extension/streams.h"
#include "python/extension/tensor_queue.h"
#include "python/extension/tensor_view.h"

PYBIND11_MODULE(_syncline, module) {
  module.doc() = "Syncline's C++ core. Use the package syncline, which is built on it.";
  syncline::python::InstallExitHook();
  syncline::python::DefineTensorView(module);
  syncline::python::DefineStreams(module);
  syncline::python::DefineApi(module);
  syncline::python::DefinePrivateApi(module);
  syncline::python::DefineCApi(module);
  syncline::python::DefineRegisterBackend(module);
  syncline::python::DefineStores(module);
  syncline::python::DefineCommHooks(module);
  syncline::python::DefineGradientHook(module);
  syncline::python::DefineTensorQueue(module);
}
