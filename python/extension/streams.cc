#include "python/extension/streams.h"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "python/extension/errors.h"
#include "syncline/status.h"

namespace syncline::python {
namespace {

namespace py = ::pybind11;

// The streams that syncline.stream has set, the innermost first: a tuple of pairs (device, number),
// device -1 standing for all. A variable of the context, so that each task of asyncio has its own.
PyObject* chosen = nullptr;  // Set once, with the module.

constexpr int64_t kLegacyDefault = 1;  // What DLPack and CUDA call the default stream.

std::optional<Stream> ChosenStream(const Device& device) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(chosen, nullptr, &value) != 0) throw py::error_already_set();
  if (value == nullptr) return std::nullopt;
  const auto pairs = py::reinterpret_steal<py::tuple>(value);
  for (py::handle pair : pairs) {
    const auto [index, number] = py::cast<std::pair<int, int64_t>>(pair);
    if (index == -1 || index == device.index) return StreamOfNumber(device, number);
  }
  return std::nullopt;
}

// A module that has been imported, by whoever made the array.
py::object Imported(const char* name) {
  return py::reinterpret_borrow<py::object>(
      PyDict_GetItemString(PyImport_GetModuleDict(), name));  // Borrowed, or null.
}

// Whether `object` is a `type` of `module`.
bool IsInstance(py::handle object, const char* module, const char* type) {
  const py::object found = Imported(module);
  return found && py::hasattr(found, type) && py::isinstance(object, found.attr(type));
}

Stream CurrentOf(const StreamSource& source, const Device& device) {
  if (source.function != nullptr) {
    void* handle = nullptr;
    if (source.function(kDLCUDA, device.index, &handle) != 0) {
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      RaiseIfError(BackendError("the array's library does not tell its current stream"));
    }
    return StreamOfNumber(device, static_cast<int64_t>(reinterpret_cast<intptr_t>(handle)));
  }
  const bool is_torch = source.library == StreamSource::Library::kTorch;
  if (source.library == StreamSource::Library::kOther) return {device};
  const py::object module = Imported(is_torch ? "torch" : "cupy");
  if (!module) return {device};
  const py::object stream =
      is_torch ? module.attr("cuda").attr("current_stream")(device.index).attr("cuda_stream")
               : module.attr("cuda").attr("get_current_stream")(device.index).attr("ptr");
  return StreamOfNumber(device, py::cast<int64_t>(stream));
}

struct Known {
  Device device;
  StreamSource source;
};

// The devices and libraries that arrays have come from; few. Guarded by the GIL.
std::vector<Known>& KnownSources() {
  static auto* const known = new std::vector<Known>;
  return *known;
}

void Remember(const Device& device, const StreamSource& source) {
  for (const Known& known : KnownSources()) {
    if (known.device == device && known.source.function == source.function &&
        known.source.library == source.library) {
      return;
    }
  }
  KnownSources().push_back({device, source});
}

}  // namespace

std::optional<Stream> CallStreams::Find(const Device& device) const {
  for (const Stream& stream : all_.own) {
    if (stream.device == device) return stream;
  }
  return std::nullopt;
}

void CallStreams::Add(const Stream& stream) {
  const std::optional<Stream> own = Find(stream.device);
  if (!own.has_value()) {
    all_.own.push_back(stream);
  } else if (*own != stream &&
             std::find(all_.others.begin(), all_.others.end(), stream) == all_.others.end()) {
    all_.others.push_back(stream);
  }
}

CallStreams::All CallStreams::Take() {
  All taken;
  std::swap(taken, all_);
  return taken;
}

StreamSource StreamSourceOf(py::handle array) {
  if (IsInstance(array, "torch", "Tensor")) return {nullptr, StreamSource::Library::kTorch};
  if (IsInstance(array, "cupy", "ndarray")) return {nullptr, StreamSource::Library::kCupy};
  return {};
}

Stream StreamFor(const Device& device, const StreamSource& source) {
  Remember(device, source);
  if (const auto stream = ChosenStream(device)) return *stream;
  return CurrentOf(source, device);
}

Stream ViewStream(const Device& device) {
  return ChosenStream(device).value_or(CurrentStream(device));
}

void AddArgumentStream(const Stream& ready) {
  CallStreams* const call = CallStreams::Innermost();
  if (call == nullptr) return;
  const std::optional<Stream> own = call->Find(ready.device);
  if (own.has_value() && *own != ready) RaiseIfError(Join(ready, *own));
  call->Add(ready);
}

void AddKnownStreams() {
  CallStreams* const call = CallStreams::Innermost();
  for (size_t i = 0; call != nullptr && i < KnownSources().size(); ++i) {
    const Known known = KnownSources()[i];  // Python code may add others.
    // The call's own stream waits for the others: what the call is about may be ready on them.
    AddArgumentStream(StreamFor(known.device, known.source));
  }
}

absl::Status Join(const Stream& from, const Stream& to) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<device::Event> event, runtime->Record(from));
  return event->EnqueueWait(to);
}

void JoinOthers(const CallStreams::All& streams) {
  for (const Stream& other : streams.others) {
    for (const Stream& own : streams.own) {
      if (own.device == other.device) RaiseIfError(Join(own, other));
    }
  }
}

int64_t StreamNumber(const Stream& stream) {
  const auto number = static_cast<int64_t>(reinterpret_cast<intptr_t>(stream.handle));
  return number == 0 ? kLegacyDefault : number;
}

Stream StreamOfNumber(const Device& device, int64_t number) {
  if (number == kLegacyDefault) number = 0;
  return {device, reinterpret_cast<void*>(static_cast<intptr_t>(number))};
}

void DefineStreams(py::module_& module) {
  chosen = PyContextVar_New("syncline.stream", nullptr);
  if (chosen == nullptr) throw py::error_already_set();
  module.attr("_chosen_streams") = py::reinterpret_borrow<py::object>(chosen);
}

}  // namespace syncline::python
