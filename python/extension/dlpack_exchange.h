// DLPack's C exchange API (https://dmlc.github.io/dlpack/latest/python_spec.html, since DLPack
// 1.3): a table of C functions that an array type carries as __dlpack_c_exchange_api__. It does
// what __dlpack__ does without running Python code, which for PyTorch is most of the time.
#ifndef SYNCLINE_PYTHON_EXTENSION_DLPACK_EXCHANGE_H_
#define SYNCLINE_PYTHON_EXTENSION_DLPACK_EXCHANGE_H_

#include <pybind11/pybind11.h>

#include <optional>

#include "python/extension/streams.h"
#include "syncline/tensor.h"

struct DLManagedTensor;

namespace syncline::python {

// An array's memory, for FromDLPack. Its deleter may be called by any thread.
struct ExchangedArray {
  DLManagedTensor* managed;
  Access access;         // Read-only, too, if it is a copy: what is written to it is lost.
  StreamSource streams;  // On whose current stream the elements are ready.
};

// By the table of `array`'s type. Nothing, and no exception is left behind, if the type has none
// of a version that is known, or changes in Python what its base class would hand over; or if its
// library refuses: then __dlpack__ is to be asked, and says why.
std::optional<ExchangedArray> ExchangeArray(pybind11::handle array);

// Whether the elements are not those in memory, but are negated whenever PyTorch reads them, as
// those of x.conj().imag. (What it conjugates like that, its __dlpack__ refuses itself.)
bool IsNegatedView(pybind11::handle array);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_DLPACK_EXCHANGE_H_
