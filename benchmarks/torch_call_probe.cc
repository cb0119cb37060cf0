// torch's own C++ call of an operation, in a loop: for torch_call_cost.py.
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace {

// Microseconds that one all_reduce of `tensor` takes, the mean of `calls` in a row.
double MeanOfAllReduce(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const at::Tensor& tensor, int calls) {
  const pybind11::gil_scoped_release released;
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) group->allreduce(tensors, options)->wait();
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / calls;
}

}  // namespace

PYBIND11_MODULE(torch_call_probe, module) { module.def("mean_of_all_reduce", &MeanOfAllReduce); }
