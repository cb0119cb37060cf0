#include "python/extension/private_api.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "backends/nccl/nccl_library.h"
#include "core/base/env.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "core/join/cluster_task.h"
#include "core/join/host_address.h"
#include "core/segments/segment_client.h"
#include "core/tensor/segment.h"
#include "core/tensor/segment_pool.h"
#include "core/tensor/shared_place.h"
#include "python/extension/convert.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/streams.h"
#include "python/extension/tensor_in.h"
#include "python/extension/tensor_view.h"
#include "syncline/device_memory.h"
#include "syncline/dtype.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/stream.h"
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

py::object ChosenInterface() {
  const auto addresses = join::ChosenInterfaceAddresses();
  RaiseIfError(addresses.status());
  if (addresses->empty()) return py::none();
  return py::str(addresses->front());
}

py::object NewShared(py::handle shape, py::handle dtype) {
  const auto lengths = FromPython<std::vector<int64_t>>(shape, "shape");
  const auto name = FromPython<std::string>(dtype, "dtype");
  return Call<Tensor>([&]() -> absl::StatusOr<Tensor> {
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, ParseDType(name));
    return EmptyShared(type, lengths);
  });
}

py::object NewOnDevice(py::handle shape, py::handle dtype, int index, bool registered) {
  const auto lengths = FromPython<std::vector<int64_t>>(shape, "shape");
  const auto name = FromPython<std::string>(dtype, "dtype");
  return Call<Tensor>([&]() -> absl::StatusOr<Tensor> {
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, ParseDType(name));
    return EmptyOnDevice({DeviceType::kCuda, index}, type, lengths,
                         registered ? DeviceMemory::kRegistered : DeviceMemory::kPlain);
  });
}

// Behind the current stream, as a call on these arrays is.
py::object CopyToDevice(py::handle to, py::handle array) {
  CallStreams streams;
  const Tensor from = TensorFromPython(array, "array");
  const Tensor* const view = TensorOfView(to);
  if (view == nullptr || !from.is_contiguous() || view->device() != from.device() ||
      view->nbytes() != from.nbytes()) {
    RaiseValueError(
        absl::StrCat("no contiguous array of the same device and size: ", from.ToString()));
  }
  const auto held = std::make_shared<const std::pair<Tensor, Tensor>>(*view, from);
  return Call<void>([&]() -> absl::Status {
    if (from.nbytes() == 0) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    const Stream stream = CurrentStream(from.device());
    SYNCLINE_RETURN_IF_ERROR(runtime->Copy(held->first.data(), from.data(), from.nbytes(), stream));
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<device::Event> end, runtime->Record(stream));
    return device::KeepUntil(std::move(end), held);
  });
}

// The buffers of the parts of a segment, as long as they are being written.
class Buffers {
 public:
  ~Buffers() {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  }
  absl::Span<const char> Add(py::handle object) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    buffers_.push_back(buffer);
    return {static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len)};
  }

 private:
  std::vector<Py_buffer> buffers_;
};

// Of a segment of `size` bytes, from pairs of an offset and a buffer.
std::vector<tensor::Segment::Part> PartsOfSegment(size_t size, const py::list& pairs,
                                                  Buffers& buffers) {
  std::vector<tensor::Segment::Part> parts;
  parts.reserve(pairs.size());
  size_t end = 0;
  for (const py::handle item : pairs) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    const auto offset = py::cast<size_t>(pair[0]);
    const absl::Span<const char> bytes = buffers.Add(pair[1]);
    if (offset < end || offset > size || bytes.size() > size - offset) {
      RaiseValueError("a part is outside, or overlaps another");
    }
    end = offset + bytes.size();
    parts.push_back({offset, bytes});
  }
  return parts;
}

int64_t WriteSegment(size_t size, const py::list& parts, bool leased) {
  Buffers buffers;
  const std::vector<tensor::Segment::Part> spans = PartsOfSegment(size, parts, buffers);
  absl::StatusOr<int> descriptor;
  {
    GilReleased released;
    descriptor = leased ? tensor::WriteLeased(size, spans) : tensor::Segment::Write(size, spans);
  }
  RaiseIfError(descriptor.status());
  return *descriptor;
}

uintptr_t AddressOf(py::handle object) {
  Buffers buffers;
  return reinterpret_cast<uintptr_t>(buffers.Add(object).data());
}

py::object SharedPlaceOf(uintptr_t address, size_t size) {
  const auto* const data = reinterpret_cast<const void*>(address);
  if (const auto place = tensor::FindShared(data, size)) {
    return py::make_tuple(place->descriptor, place->offset, place->size);
  }
  std::optional<segments::SegmentClient::Place> named;
  {
    GilReleased released;  // A child of fork asks the manager.
    named = segments::SegmentClient::Get().Find(data, size);
  }
  if (!named.has_value()) return py::none();
  return py::make_tuple(named->name, named->offset, named->size);
}

py::object ToPython(const absl::StatusOr<segments::Carried>& carried) {
  RaiseIfError(carried.status());
  return py::make_tuple(carried->name, carried->sender);
}

segments::SegmentClient& Segments() { return segments::SegmentClient::Get(); }

void UseSegmentManager(const std::string& manager) {
  absl::Status status;
  {
    GilReleased released;
    status = Segments().Use(manager);
  }
  RaiseIfError(status);
}

py::object WriteNamed(size_t size, const py::list& parts) {
  Buffers buffers;
  const std::vector<tensor::Segment::Part> spans = PartsOfSegment(size, parts, buffers);
  absl::StatusOr<segments::Carried> carried;
  {
    GilReleased released;
    carried = Segments().Write(size, spans);
  }
  return ToPython(carried);
}

py::object MakeNamed(size_t size) {
  return Call<Tensor>([&] { return Segments().Make(size); });
}

py::object CarryNamed(const std::string& name) {
  absl::StatusOr<segments::Carried> carried;
  {
    GilReleased released;
    carried = Segments().Carry(name);
  }
  return ToPython(carried);
}

void DropNamed(const std::string& name, uint64_t sender) { Segments().Drop({name, sender}); }

void DiscardNamed(const std::string& name, uint64_t sender) {
  GilReleased released;
  Segments().Discard({name, sender});
}

py::object MapNamed(const std::string& name, uint64_t sender, int pid, size_t size) {
  return Call<Tensor>([&] { return Segments().Receive({name, sender}, pid, size); });
}

void LeaveSegments() {
  GilReleased released;
  Segments().Leave();
}

void KeepContents(uintptr_t address) {
  tensor::KeepContents(reinterpret_cast<const void*>(address));
}

py::object MapShared(int descriptor, size_t size, bool leased) {
  const auto lease = leased ? tensor::LeaseKind::kUntilFreed : tensor::LeaseKind::kNone;
  const size_t whole = leased ? tensor::LeasedSize(size) : size;
  return Call<Tensor>([&] { return tensor::MapShared(descriptor, whole, lease); });
}

py::object SharedHandleOf(py::handle array) {
  const Tensor tensor = TensorFromPython(array, "x");
  return Call<std::string>([&] { return SharedHandle(tensor); });
}

py::object OpenSharedHandle(py::handle handle) {
  const auto text = FromPython<std::string>(handle, "handle");
  return Call<Tensor>([&] { return OpenShared(text); });
}

py::object PartOf(py::handle whole, size_t offset, py::handle dtype, py::handle shape) {
  const Tensor bytes = TensorFromPython(whole, "whole");
  const auto name = FromPython<std::string>(dtype, "dtype");
  const auto lengths = FromPython<std::vector<int64_t>>(shape, "shape");
  return Call<Tensor>([&]() -> absl::StatusOr<Tensor> {
    SYNCLINE_ASSIGN_OR_RETURN(const DType type, ParseDType(name));
    SYNCLINE_RETURN_IF_ERROR(CheckShape(type, lengths));
    Tensor part(bytes.data_as<char>() + offset, type, lengths, {}, bytes.device(), bytes.owner());
    if (offset > bytes.nbytes() || part.nbytes() > bytes.nbytes() - offset) {
      return ArgumentError("the part is outside of the memory");
    }
    return part;
  });
}

void SetNcclSearchPath(py::handle folders) {
  nccl::SetNcclSearchPath(FromPython<std::vector<std::string>>(folders, "folders"));
}

}  // namespace

void DefinePrivateApi(py::module_& module) {
  const py::object work = module.attr("Work");
  work.attr("_on_complete") = py::cpp_function(&OnComplete, py::name("_on_complete"),
                                               py::is_method(work), py::arg("callback"));
  module.def("_task_local_rank", &TaskLocalRank);
  module.def("_empty_shared", &NewShared, py::arg("shape"), py::arg("dtype"));
  module.def("_empty_on_device", &NewOnDevice, py::arg("shape"), py::arg("dtype"), py::arg("index"),
             py::arg("registered"));
  module.def("_copy_to_device", &CopyToDevice, py::arg("to"), py::arg("array"));
  module.def("_write_segment", &WriteSegment, py::arg("size"), py::arg("parts"),
             py::arg("leased") = false);
  module.def("_address", &AddressOf, py::arg("buffer"));
  module.def("_shared_place", &SharedPlaceOf, py::arg("address"), py::arg("size"));
  module.def("_keep_contents", &KeepContents, py::arg("address"));
  module.def("_map_shared", &MapShared, py::arg("descriptor"), py::arg("size"),
             py::arg("leased") = false);
  module.def("_idle_mappings", &tensor::IdleMappingCount);
  module.def("_use_segment_manager", &UseSegmentManager, py::arg("manager"));
  module.def("_segment_manager", [] { return Segments().manager(); });
  module.def("_write_named", &WriteNamed, py::arg("size"), py::arg("parts"));
  module.def("_make_named", &MakeNamed, py::arg("size"));
  module.def("_carry_named", &CarryNamed, py::arg("name"));
  module.def("_drop_named", &DropNamed, py::arg("name"), py::arg("sender"));
  module.def("_discard_named", &DiscardNamed, py::arg("name"), py::arg("sender"));
  module.def("_map_named", &MapNamed, py::arg("name"), py::arg("sender"), py::arg("pid"),
             py::arg("size"));
  module.def("_leave_segments", &LeaveSegments);
  module.def("_chosen_interface_address", &ChosenInterface);
  module.def("_shared_handle", &SharedHandleOf, py::arg("tensor"));
  module.def("_open_shared", &OpenSharedHandle, py::arg("handle"));
  module.def("_part_of", &PartOf, py::arg("whole"), py::arg("offset"), py::arg("dtype"),
             py::arg("shape"));
  module.def("_set_nccl_search_path", &SetNcclSearchPath, py::arg("folders"));
  module.def("_parts", &Parts, py::arg("array"), py::arg("count"));
}

}  // namespace syncline::python
