#include "python/extension/python_backend.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "python/extension/convert.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/in_python.h"
#include "syncline/backend_registry.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/status.h"

namespace syncline::python {
namespace {

py::object ViewOf(const Tensor& tensor) { return ToPython<Tensor>(tensor); }

py::list ViewsOf(absl::Span<const Tensor> tensors) {
  py::list views;
  for (const Tensor& tensor : tensors) views.append(ViewOf(tensor));
  return views;
}

bool HasOutputs(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kAllToAll;
}

bool HasTensor(OpKind kind) { return kind != OpKind::kBarrier && kind != OpKind::kAllToAll; }

bool HasInputs(OpKind kind) {
  return kind == OpKind::kScatter || kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

// The arguments of the Python method for `call`, by one rule: what it writes, what it reads, the
// reduction, the root or peer, the tag; each if the operation has it.
py::list ArgumentsOf(const Collective& call) {
  py::list arguments;
  if (HasOutputs(call.kind)) arguments.append(ViewsOf(call.outputs));
  if (HasTensor(call.kind)) arguments.append(ViewOf(*call.tensor));
  if (HasInputs(call.kind)) arguments.append(ViewsOf(call.inputs));
  if (Reduces(call.kind)) arguments.append(ToPython<ReduceOp>(call.reduce_op));
  if (HasRoot(call.kind) || IsP2p(call.kind)) arguments.append(call.peer);
  if (IsP2p(call.kind)) arguments.append(call.tag);
  return arguments;
}

absl::StatusOr<DeviceType> ParseDevice(const std::string& name) {
  if (name == "cpu") return DeviceType::kCpu;
  if (name == "cuda") return DeviceType::kCuda;
  return ArgumentError(absl::StrCat("unknown device '", name, "'; choose of: cpu, cuda"));
}

absl::StatusOr<OpKind> ParseOpKind(const std::string& name) {
  std::string known;
  for (OpKind kind : AllOpKinds()) {
    if (Name(kind) == name) return kind;
    absl::StrAppend(&known, known.empty() ? "" : ", ", Name(kind));
  }
  return ArgumentError(absl::StrCat("unknown operation '", name, "'; choose of: ", known));
}

absl::StatusOr<Capabilities> ParseCapabilities(const std::vector<std::string>& devices,
                                               const std::vector<std::string>& operations,
                                               const std::vector<std::string>& dtypes) {
  Capabilities capabilities;
  capabilities.devices.clear();
  for (const std::string& name : devices) {
    SYNCLINE_ASSIGN_OR_RETURN(const DeviceType device, ParseDevice(name));
    capabilities.devices.insert(device);
  }
  for (const std::string& name : operations) {
    SYNCLINE_ASSIGN_OR_RETURN(const OpKind kind, ParseOpKind(name));
    capabilities.ops.insert(kind);
  }
  for (const std::string& name : dtypes) {
    SYNCLINE_ASSIGN_OR_RETURN(const DType dtype, ParseDType(name));
    capabilities.move_dtypes.insert(dtype);
  }
  // Core puts results together with its own arithmetic, which has no floats of eight bits.
  for (DType dtype : capabilities.move_dtypes) {
    if (!IsFloat8(dtype)) capabilities.reduce_dtypes.insert(dtype);
  }
  return capabilities;
}

absl::StatusOr<std::shared_ptr<Backend>> Make(const std::string& name, const py::object& factory,
                                              const BackendConfig& config) {
  std::shared_ptr<py::object> object;
  SYNCLINE_RETURN_IF_ERROR(InPython(absl::StrCat("backend '", name, "'"), [&] {
    py::object made = factory(ToPython<std::shared_ptr<Store>>(config.store), config.rank,
                              config.size, ToPython<absl::Duration>(config.deadline.Remaining()));
    if (made.is_none()) return BackendError("its factory returned None");
    object = DroppedUnderGil(std::move(made));
    return absl::OkStatus();
  }));
  return std::make_shared<PythonBackend>(name, config.rank, std::move(object));
}

void Register(py::handle py_name, py::object factory, py::handle devices, py::handle operations,
              py::handle dtypes) {
  using Names = std::vector<std::string>;
  const auto name = FromPython<std::string>(py_name, "name");
  auto capabilities = ParseCapabilities(FromPython<Names>(devices, "devices"),
                                        FromPython<Names>(operations, "operations"),
                                        FromPython<Names>(dtypes, "dtypes"));
  RaiseIfError(capabilities.status());
  auto owned = DroppedUnderGil(std::move(factory));
  auto make = [name, owned](const BackendConfig& config) { return Make(name, *owned, config); };
  RaiseIfError(BackendRegistry::Add(name, {*std::move(capabilities), std::move(make)}));
}

}  // namespace

void PythonBackend::Abort(const absl::Status& cause) {
  InPython(name_, [&] {
    if (py::hasattr(*object_, "abort")) {
      object_->attr("abort")(ToPython<std::string>(std::string(cause.message())));
    }
    return absl::OkStatus();
  }).IgnoreError();  // The group is broken already; `cause` is what matters.
}

absl::StatusOr<int> PythonBackend::RunBlocking(const CallContext& context) {
  const Collective& collective = *context.collective;
  const absl::Duration left = context.deadline.Remaining();
  if (left <= absl::ZeroDuration()) {
    return TimeoutError(absl::StrCat("backend '", name_, "' had no time left of ",
                                     absl::FormatDuration(context.deadline.timeout())));
  }
  int source = 0;
  SYNCLINE_RETURN_IF_ERROR(InPython(absl::StrCat("backend '", name_, "'"), [&]() -> absl::Status {
    const std::string method(Name(collective.kind));
    if (!py::hasattr(*object_, method.c_str())) {
      return UnsupportedError(absl::StrCat("it does not serve ", method));
    }
    const py::object result = object_->attr(method.c_str())(
        *ArgumentsOf(collective), py::arg("timeout") = ToPython<absl::Duration>(left));
    if (collective.kind == OpKind::kRecv) {
      source = FromPython<int>(result, "what it returns");
    }
    return absl::OkStatus();
  }));
  return source;
}

void DefineRegisterBackend(py::module_& module) {
  py::list operations;
  for (OpKind kind : AllOpKinds()) operations.append(std::string(Name(kind)));
  module.attr("_operations") = py::tuple(operations);
  module.def("_register_backend", &Register, py::arg("name"), py::arg("factory"),
             py::arg("devices"), py::arg("operations"), py::arg("dtypes"));
}

}  // namespace syncline::python
