// Backends that are written in Python.
#ifndef SYNCLINE_PYTHON_EXTENSION_PYTHON_BACKEND_H_
#define SYNCLINE_PYTHON_EXTENSION_PYTHON_BACKEND_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/group/blocking_backend.h"
#include "syncline/backend.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::python {

// Calls the methods of an object of Python: one for each operation, with its name, and
// abort(reason). The arguments of an operation follow from a rule: what it writes, what it reads,
// the reduction, the root or the peer, the tag, each if the operation has it. So for example:
//
//   all_reduce(tensor, op)        reduce_scatter(output, inputs, op)  barrier()
//   gather(outputs, input, root)  recv(tensor, src, tag) -> int       send(tensor, dst, tag)
//
// with `timeout`, a timedelta, as a further keyword argument of all except abort. Tensors are
// TensorViews, `op` is a ReduceOp, a `src` of -1 stands for any. An operation that the object lacks
// is an UnsupportedError; what it raises is an error of the kind that fits the exception's type.
// A call cannot be ended from outside: the object must heed timeout and abort.
class PythonBackend : public group::BlockingBackend {
 public:
  // `object` is dropped under the GIL.
  PythonBackend(std::string name, int rank, std::shared_ptr<pybind11::object> object)
      : group::BlockingBackend(rank), name_(std::move(name)), object_(std::move(object)) {}

  absl::string_view name() const override { return name_; }
  void Abort(const absl::Status& cause) override;

 private:
  // Calls the method for one operation, under the GIL.
  absl::StatusOr<int> RunBlocking(const CallContext& context) override;

  const std::string name_;
  const std::shared_ptr<pybind11::object> object_;
};

// Adds to `module` `_operations`, the names of all operations, and the function that makes a
// backend's name known to groups:
//
//   _register_backend(name, factory, devices, operations, dtypes)
//
// `factory(store, rank, size, timeout)` returns the object of one rank of one group, once all ranks
// have called it.
void DefineRegisterBackend(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PYTHON_BACKEND_H_
