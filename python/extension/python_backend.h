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
#include "core/group/backend.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline::python {

// Calls the methods of an object of Python, each named as here but all_reduce for AllReduce:
//
// clang-format off
//   broadcast(tensor, root)       gather(outputs, input, root)        barrier()
//   all_reduce(tensor, op)        scatter(output, inputs, root)       send(tensor, dst, tag)
//   reduce(tensor, op, root)      reduce_scatter(output, inputs, op)  recv(tensor, src, tag) -> int
//   all_gather(outputs, input)    all_to_all(outputs, inputs)         abort(reason)
// clang-format on
//
// with `timeout`, a timedelta, as a further keyword argument of all but abort. Tensors are
// TensorViews, `op` is a ReduceOp, a `src` of -1 stands for any. An operation that the object lacks
// is an UnsupportedError; what it raises is an error of the kind that fits the exception's type.
// A call cannot be ended from outside: the object must heed timeout and abort.
class PythonBackend : public Backend {
 public:
  // `object` is dropped under the GIL.
  PythonBackend(std::string name, std::shared_ptr<pybind11::object> object)
      : name_(std::move(name)), object_(std::move(object)) {}

  absl::string_view name() const override { return name_; }
  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override;
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override;
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override;
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override;
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override;
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override;
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override;
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override;
  absl::Status Barrier(const CallContext& context) override;
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;
  void Abort(const absl::Status& cause) override;

 private:
  // Calls the method of `kind` under the GIL; hands its result, if wanted, to `use`.
  absl::Status Call(
      OpKind kind, const CallContext& context, absl::FunctionRef<pybind11::tuple()> arguments,
      absl::FunctionRef<void(pybind11::object)> use = [](const pybind11::object&) {});

  const std::string name_;
  const std::shared_ptr<pybind11::object> object_;
};

// Adds to `module` the function that makes a backend's name known to groups:
//
//   _register_backend(name, factory, devices, operations, dtypes)
//
// `factory(store, rank, size, timeout)` returns the object of one rank of one group, once all ranks
// have called it.
void DefineRegisterBackend(pybind11::module_& module);

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_PYTHON_BACKEND_H_
