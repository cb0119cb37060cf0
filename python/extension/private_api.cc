#include "python/extension/private_api.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/join/cluster_task.h"
#include "python/extension/convert.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/tensor_in.h"
#include "syncline/dtype.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/work.h"

namespace syncline::python {
namespace {

void OnComplete(Work& work, py::object callback) {
  auto owned = DroppedUnderGil(std::move(callback));
  auto call = [owned](const absl::Status&) {
    WithGil([&owned] {
      try {
        (*owned)();
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("a callback of syncline.Work");
      }
    });
  };
  GilReleased released;  // It may be called here, and what it does may wait for other threads.
  work.OnComplete(std::move(call));
}

py::list Parts(py::handle array, int64_t count) {
  const Tensor tensor = TensorFromPython(array, "tensor");
  if (!tensor.is_contiguous()) {
    RaiseValueError(
        absl::StrCat("tensor is not contiguous (", tensor.ToString(), "): pass a contiguous copy"));
  }
  if (count < 1 || tensor.numel() % count != 0) {
    RaiseValueError(absl::StrCat("tensor (", tensor.ToString(), ") cannot be divided into ", count,
                                 " equal parts, one for each rank"));
  }
  const int64_t size = tensor.numel() / count;
  py::list parts;
  for (int64_t i = 0; i < count; ++i) parts.append(ToPython<Tensor>(tensor.Slice(i * size, size)));
  return parts;
}

py::object TaskLocalRank() {
  const std::optional<join::ClusterTask> task = join::DetectTask(base::GetEnv);
  if (!task.has_value() || task->local_rank < 0) return py::none();
  return py::int_(task->local_rank);
}

py::object NewShared(py::handle shape, py::handle dtype) {
  const auto lengths = FromPython<std::vector<int64_t>>(shape, "shape");
  const auto name = FromPython<std::string>(dtype, "dtype");
  return Call<Tensor>([&]() -> absl::StatusOr<Tensor> {
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, ParseDType(name));
    return EmptyShared(type, lengths);
  });
}

}  // namespace

void DefinePrivateApi(py::module_& module) {
  const py::object work = module.attr("Work");
  work.attr("_on_complete") = py::cpp_function(&OnComplete, py::name("_on_complete"),
                                               py::is_method(work), py::arg("callback"));
  module.def("_task_local_rank", &TaskLocalRank);
  module.def("_empty_shared", &NewShared, py::arg("shape"), py::arg("dtype"));
  module.def("_parts", &Parts, py::arg("array"), py::arg("count"));
}

}  // namespace syncline::python
