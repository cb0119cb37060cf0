#include "backend.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "call.h"
#include "work.h"

namespace syncline_torch {
namespace {

using Use = Call::Use;

constexpr const char* kInCallback =
    "a callback of a future calls an operation of the same group, whose operations wait for the "
    "callback: wait for the future, and call it then";

// Whether torch's dispatcher must see operations.
bool IsWatched() {
  return at::hasCallbacks() || c10::impl::dispatch_mode_enabled() ||
         c10d::allow_inflight_collective_as_graph_input();
}

bool IsOne(const Tensors& tensors) { return tensors.size() == 1; }

// Of the lists that operations with a root take: of one list, or of none.
bool IsOneOrNone(const std::vector<Tensors>& lists) { return lists.size() <= 1; }
const Tensors& OnlyOf(const std::vector<Tensors>& lists) {
  static const Tensors* const kNone = new Tensors;
  return lists.empty() ? *kNone : lists.front();
}

bool AllOfType(const Tensors& tensors, at::ScalarType type) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.scalar_type() != type) return false;
  }
  return true;
}

// Longer ones than 292 years do not fit.
template <typename Duration>
int64_t InNanoseconds(Duration given) {
  constexpr auto kMost = std::chrono::duration_cast<Duration>(std::chrono::nanoseconds::max());
  return std::chrono::nanoseconds(std::min(given, kMost)).count();
}

int64_t TimeoutOf(std::chrono::milliseconds given, int64_t otherwise) {
  return given.count() > 0 ? InNanoseconds(given) : otherwise;
}

// Whether two of `tensors` begin at one address: Python says what that means.
bool HasOneTwice(const Tensors& tensors) {
  c10::SmallVector<const void*, 16> begins;
  for (const at::Tensor& tensor : tensors) {
    if (IsPlain(tensor) && tensor.numel() > 0) begins.push_back(tensor.const_data_ptr());
  }
  std::sort(begins.begin(), begins.end());
  return std::adjacent_find(begins.begin(), begins.end()) != begins.end();
}

// By SynclineOperation: what torch's profiler has after "gloo:" and "nccl:".
constexpr const char* kTitles[] = {"syncline:broadcast",
                                   "syncline:all_reduce",
                                   "syncline:all_reduce",
                                   "syncline:reduce",
                                   "syncline:all_gather",
                                   "syncline:_all_gather_base",
                                   "syncline:all_gather",
                                   "syncline:gather",
                                   "syncline:scatter",
                                   "syncline:reduce_scatter",
                                   "syncline:_reduce_scatter_base",
                                   "syncline:reduce_scatter",
                                   "syncline:all_to_all",
                                   "syncline:all_to_all",
                                   "syncline:barrier",
                                   "syncline:send",
                                   "syncline:recv"};

// What a profiler sees of an operation, until it is destroyed, on whichever thread. Null if none is
// on.
using Record = std::shared_ptr<at::RecordFunction>;

Record StartRecord(int32_t operation, const Tensors& tensors, bool in_background) {
  if (!at::hasCallbacks()) return nullptr;
  auto record = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!record->isActive()) return nullptr;
  if (in_background) record->_setAsync();
  const std::vector<c10::IValue> inputs(tensors.begin(), tensors.end());
  record->before(kTitles[operation], &inputs);
  return record;
}

void EndRecord(void* record) { delete static_cast<Record*>(record); }

// What the memory of an operation in the background belongs to.
struct Kept {
  Tensors tensors;
  static void Drop(void* owner) { delete static_cast<Kept*>(owner); }
};

}  // namespace

Backend::Backend(int rank, int size, const py::object& group, py::object fallback,
                 int64_t timeout_ns)
    : c10d::Backend(rank, size),
      group_(api->group(group.ptr())),
      fallback_(std::move(fallback)),
      timeout_ns_(timeout_ns) {
  if (group_ == nullptr) throw py::error_already_set();
}

Backend::~Backend() {
  DropObject(std::move(fallback_));
  // When Python has ended, nothing can be waited for: the group has been closed before.
  if (group_ != nullptr && Py_IsInitialized() != 0) api->drop_group(group_);
}

template <typename... Arguments>
WorkPointer Backend::InPython(const char* method, Arguments&&... arguments) {
  WorkPointer work;
  {
    py::gil_scoped_acquire gil;
    work =
        c10::make_intrusive<PythonWork>(fallback_(method, std::forward<Arguments>(arguments)...));
  }
  if (!Collect(work)) return work;
  return c10::make_intrusive<FinishedWork>(work->result());
}

template <typename... Arguments>
void Backend::CallPython(const char* method, Arguments&&... arguments) {
  py::gil_scoped_acquire gil;
  fallback_(method, std::forward<Arguments>(arguments)...);
}

bool Backend::Collect(const WorkPointer& work) {
  if (!is_coalescing_) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  collected_.push_back(work);
  return true;
}

void Backend::setTimeout(std::chrono::milliseconds timeout) { CallPython("set_timeout", timeout); }
void Backend::abort() { CallPython("abort"); }
void Backend::shutdown() { CallPython("shutdown"); }

void Backend::startCoalescing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  collected_.clear();
  is_coalescing_ = true;
}

WorkPointer Backend::endCoalescing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_coalescing_ = false;
  return c10::make_intrusive<AllWork>(std::exchange(collected_, {}));
}

WorkPointer Backend::Issue(Call& call, bool in_background, std::chrono::milliseconds timeout,
                           Tensors written) {
  if (callbacks_of == group_) {
    py::gil_scoped_acquire gil;
    PyErr_SetString(PyExc_RuntimeError, kInCallback);
    throw py::error_already_set();
  }
  call.SetTimeout(TimeoutOf(timeout, timeout_ns_));
  SynclineError* error = nullptr;
  const bool is_started = in_background || is_coalescing_;
  const Record record = StartRecord(call.Get().operation, written, is_started);
  if (!is_started) {
    {
      const WithoutGil released;
      error = api->run(group_, &call.Get());
    }
    if (error != nullptr) Throw(error);
    if (!call.copies().empty()) CopyBack(call.copies());
    return c10::make_intrusive<FinishedWork>(std::move(written));
  }
  SynclineWork* started = nullptr;
  const SynclineCall& arguments = call.Get();
  auto* const kept = new Kept{call.TakeTensors()};
  {
    const WithoutGil released;
    error = api->start(group_, &arguments, kept, &Kept::Drop, &started);
  }
  if (error != nullptr) Throw(error);
  if (record != nullptr) api->on_complete(started, &EndRecord, new Record(record));
  const auto work =
      c10::make_intrusive<RunningWork>(group_, started, written, std::move(call.copies()));
  if (!Collect(work)) return work;
  return c10::make_intrusive<FinishedWork>(std::move(written));  // Who collects waits for all.
}

// What a communication hook in Python calls is over when the call returns: what it chains to
// futures then runs in one order on all ranks.
template <typename CallOptions>
WorkPointer Backend::Issue(Call& call, const CallOptions& opts, Tensors written) {
  return Issue(call, opts.asyncOp && !is_in_hook, opts.timeout, std::move(written));
}

WorkPointer Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Call call(kSynclineBroadcast);
  const bool is_written = opts.rootRank != getRank();
  if (!IsOne(tensors) || !call.AddOutput(tensors[0], Use::kMove, is_written)) {
    return InPython("broadcast", tensors, opts);
  }
  call.SetPeer(opts.rootRank);
  return Issue(call, opts, tensors);
}

WorkPointer Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Call call(kSynclineAllReduce);
  if (!IsOne(tensors) || !call.SetReduction(opts.reduceOp) ||
      !call.AddOutput(tensors[0], Use::kReduce)) {
    return InPython("allreduce", tensors, opts);
  }
  return Issue(call, opts, tensors);
}

WorkPointer Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return InPython("allreduce", tensors, opts);
}

WorkPointer Backend::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& opts) {
  Call call(kSynclineAllReduceCoalesced);
  bool fits = !tensors.empty() && !HasOneTwice(tensors) && call.SetReduction(opts.reduceOp);
  for (const at::Tensor& tensor : tensors) fits = fits && call.AddOutput(tensor, Use::kReduce);
  if (!fits) return InPython("allreduce_coalesced", tensors, opts);
  return Issue(call, opts, tensors);
}

WorkPointer Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Call call(kSynclineReduce);
  if (!IsOne(tensors) || !call.SetReduction(opts.reduceOp) ||
      !call.AddOutput(tensors[0], Use::kReduce)) {
    return InPython("reduce", tensors, opts);
  }
  call.SetPeer(opts.rootRank);
  return Issue(call, opts, tensors);
}

WorkPointer Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  Call call(kSynclineAllGather);
  bool fits = outputs.size() == 1 && IsOne(inputs) && call.AddInput(inputs[0], Use::kMove);
  for (const at::Tensor& output : OnlyOf(outputs)) {
    fits = fits && call.AddOutput(output, Use::kMove);
  }
  if (!fits) return InPython("allgather", outputs, inputs, opts);
  return Issue(call, opts, outputs[0]);
}

WorkPointer Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& opts) {
  Call call(kSynclineAllGatherSingle);
  if (!call.AddOutput(output, Use::kMove) || !call.AddInput(input, Use::kMove)) {
    return InPython("all_gather_single", output, input, opts);
  }
  return Issue(call, opts, {output});
}

WorkPointer Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  Call call(kSynclineAllGatherCoalesced);
  bool fits = !inputs.empty();
  Tensors written;
  for (const Tensors& of_rank : outputs) {
    fits = fits && of_rank.size() == inputs.size();
    written.insert(written.end(), of_rank.begin(), of_rank.end());
  }
  for (size_t i = 0; i < inputs.size() && fits; ++i) {
    fits = call.AddInput(inputs[i], Use::kMove);
    for (const Tensors& of_rank : outputs) fits = fits && call.AddOutput(of_rank[i], Use::kMove);
  }
  if (!fits) return InPython("allgather_coalesced", outputs, inputs, opts);
  return Issue(call, opts, std::move(written));
}

WorkPointer Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  Call call(kSynclineAllGatherCoalesced);
  bool fits = !inputs.empty();
  for (const at::Tensor& output : outputs) {
    fits = fits && call.AddPartsAsOutputs(output, getSize(), Use::kMove);
  }
  for (const at::Tensor& input : inputs) fits = fits && call.AddFlatInput(input, Use::kMove);
  if (!fits) return InPython("all_gather_single_coalesced", outputs, inputs, opts);
  return Issue(call, opts, outputs);
}

WorkPointer Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) {
  Call call(kSynclineGather);
  bool fits = IsOneOrNone(outputs) && IsOne(inputs) && call.AddInput(inputs[0], Use::kMove);
  for (const at::Tensor& output : OnlyOf(outputs)) {
    fits = fits && call.AddOutput(output, Use::kMove);
  }
  if (!fits) return InPython("gather", outputs, inputs, opts);
  call.SetPeer(opts.rootRank);
  return Issue(call, opts, OnlyOf(outputs));
}

WorkPointer Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ScatterOptions& opts) {
  Call call(kSynclineScatter);
  bool fits = IsOneOrNone(inputs) && IsOne(outputs) && call.AddOutput(outputs[0], Use::kMove);
  for (const at::Tensor& input : OnlyOf(inputs)) fits = fits && call.AddInput(input, Use::kMove);
  if (!fits) return InPython("scatter", outputs, inputs, opts);
  call.SetPeer(opts.rootRank);
  return Issue(call, opts, outputs);
}

WorkPointer Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& opts) {
  Call call(kSynclineReduceScatter);
  bool fits = inputs.size() == 1 && IsOne(outputs) && call.SetReduction(opts.reduceOp) &&
              call.AddOutput(outputs[0], Use::kReduce);
  for (const at::Tensor& input : OnlyOf(inputs)) fits = fits && call.AddInput(input, Use::kReduce);
  if (!fits) return InPython("reduce_scatter", outputs, inputs, opts);
  return Issue(call, opts, outputs);
}

WorkPointer Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& opts) {
  Call call(kSynclineReduceScatterSingle);
  if (!call.SetReduction(opts.reduceOp) || !call.AddOutput(output, Use::kReduce) ||
      !call.AddInput(input, Use::kReduce)) {
    return InPython("reduce_scatter_single", output, input, opts);
  }
  return Issue(call, opts, {output});
}

WorkPointer Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  Call call(kSynclineReduceScatterCoalesced);
  bool fits = !outputs.empty() && !inputs.empty() && inputs[0].defined() &&
              AllOfType(inputs, inputs[0].scalar_type()) && call.SetReduction(opts.reduceOp);
  for (const at::Tensor& output : outputs) {
    fits = fits && call.AddFlatOutput(output, Use::kReduce);
  }
  for (const at::Tensor& input : inputs) {
    fits = fits && call.AddPartsAsInputs(input, getSize(), Use::kReduce);
  }
  if (!fits) return InPython("reduce_scatter_single_coalesced", outputs, inputs, opts);
  return Issue(call, opts, outputs);
}

WorkPointer Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits,
                                   const c10d::AllToAllOptions& opts) {
  Call call(kSynclineAllToAllSingle);
  if (!call.AddOutput(output, Use::kMove) || !call.AddInput(input, Use::kMove)) {
    return InPython("all_to_all_single", output, input, output_splits, input_splits, opts);
  }
  call.SetSplits(output_splits, input_splits);
  return Issue(call, opts, {output});
}

WorkPointer Backend::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& opts) {
  Call call(kSynclineAllToAll);
  bool fits = true;
  for (const at::Tensor& output : outputs) fits = fits && call.AddOutput(output, Use::kMove);
  for (const at::Tensor& input : inputs) fits = fits && call.AddInput(input, Use::kMove);
  if (!fits) return InPython("alltoall", outputs, inputs, opts);
  return Issue(call, opts, outputs);
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  if (opts.timeout.count() > 0) {
    CallPython("monitored_barrier", opts.timeout, wait_all_ranks);
  } else {
    CallPython("monitored_barrier", py::none(), wait_all_ranks);
  }
}

WorkPointer Backend::send(Tensors& tensors, int destination, int tag) {
  Call call(kSynclineSend);
  if (!IsOne(tensors) || !call.AddOutput(tensors[0], Use::kMove, false)) {
    return InPython("send", tensors, destination, tag);
  }
  call.SetPeer(destination);
  call.SetTag(tag);
  return Issue(call, true, kNoTimeout, tensors);
}

WorkPointer Backend::recv(Tensors& tensors, int source, int tag) {
  Call call(kSynclineRecv);
  if (!IsOne(tensors) || !call.AddOutput(tensors[0], Use::kMove)) {
    return InPython("recv", tensors, source, tag);
  }
  call.SetPeer(source);
  call.SetTag(tag);
  return Issue(call, true, kNoTimeout, tensors);
}

WorkPointer Backend::recvAnysource(Tensors& tensors, int tag) {
  return this->recv(tensors, -1, tag);
}

WorkPointer Backend::barrier(const c10d::BarrierOptions& opts) {
  if (opts.device.has_value() && !opts.device->is_cpu()) return InPython("barrier", opts);
  Call call(kSynclineBarrier);
  return Issue(call, opts, {});
}

ProcessGroup::ProcessGroup(const Pointer<c10d::Store>& store, int rank, int size,
                           Pointer<Backend> backend)
    : c10d::ProcessGroup(store, rank, size), backend_(std::move(backend)) {
  setDefaultBackend(BackendType::CUSTOM);
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    setBackend(device, BackendType::CUSTOM, Pointer<c10d::Backend>(backend_));
  }
}

void ProcessGroup::release_resources() {
  c10d::ProcessGroup::release_resources();
  backend_.reset();
}

void ProcessGroup::setGroupName(const std::string& name) {
  name_ = name;
  c10d::ProcessGroup::setGroupName(name);
}

void ProcessGroup::setGroupDesc(const std::string& description) {
  description_ = description;
  c10d::ProcessGroup::setGroupDesc(description);
}

WorkPointer ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::broadcast(tensors, opts);
  return backend_->broadcast(tensors, opts);
}

WorkPointer ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::allreduce(tensors, opts);
  return backend_->allreduce(tensors, opts);
}

WorkPointer ProcessGroup::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::allreduce_coalesced(tensors, opts);
  return backend_->allreduce_coalesced(tensors, opts);
}

WorkPointer ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::reduce(tensors, opts);
  return backend_->reduce(tensors, opts);
}

WorkPointer ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::allgather(outputs, inputs, opts);
  return backend_->allgather(outputs, inputs, opts);
}

WorkPointer ProcessGroup::all_gather_single(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::all_gather_single(output, input, opts);
  return backend_->_allgather_base(output, input, opts);
}

WorkPointer ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::allgather_coalesced(outputs, inputs, opts);
  return backend_->allgather_coalesced(outputs, inputs, opts);
}

WorkPointer ProcessGroup::all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::all_gather_single_coalesced(outputs, inputs, opts);
  return backend_->allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPointer ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::gather(outputs, inputs, opts);
  return backend_->gather(outputs, inputs, opts);
}

WorkPointer ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::scatter(outputs, inputs, opts);
  return backend_->scatter(outputs, inputs, opts);
}

WorkPointer ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::reduce_scatter(outputs, inputs, opts);
  return backend_->reduce_scatter(outputs, inputs, opts);
}

WorkPointer ProcessGroup::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::reduce_scatter_single(output, input, opts);
  return backend_->_reduce_scatter_base(output, input, opts);
}

WorkPointer ProcessGroup::reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  if (IsWatched()) {
    return c10d::ProcessGroup::reduce_scatter_single_coalesced(outputs, inputs, opts);
  }
  return backend_->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPointer ProcessGroup::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& opts) {
  if (IsWatched()) {
    return c10d::ProcessGroup::all_to_all_single(output, input, output_splits, input_splits, opts);
  }
  return backend_->alltoall_base(output, input, output_splits, input_splits, opts);
}

WorkPointer ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::alltoall(outputs, inputs, opts);
  return backend_->alltoall(outputs, inputs, opts);
}

WorkPointer ProcessGroup::send(Tensors& tensors, int destination, int tag) {
  if (IsWatched()) return c10d::ProcessGroup::send(tensors, destination, tag);
  return backend_->send(tensors, destination, tag);
}

WorkPointer ProcessGroup::recv(Tensors& tensors, int source, int tag) {
  if (IsWatched()) return c10d::ProcessGroup::recv(tensors, source, tag);
  return backend_->recv(tensors, source, tag);
}

WorkPointer ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  if (IsWatched()) return c10d::ProcessGroup::recvAnysource(tensors, tag);
  return backend_->recvAnysource(tensors, tag);
}

WorkPointer ProcessGroup::barrier(const c10d::BarrierOptions& opts) {
  if (IsWatched()) return c10d::ProcessGroup::barrier(opts);
  return backend_->barrier(opts);
}

namespace {

// Of a timedelta or None.
int64_t TimeoutFrom(const py::object& timeout) {
  if (timeout.is_none()) return -1;
  return InNanoseconds(timeout.cast<std::chrono::microseconds>());
}

Pointer<ProcessGroup> MakeGroup(const Pointer<c10d::Store>& store, int rank, int size,
                                const py::object& group, py::object fallback) {
  auto backend = c10::make_intrusive<Backend>(rank, size, group, std::move(fallback), -1);
  return c10::make_intrusive<ProcessGroup>(store, rank, size, std::move(backend));
}

}  // namespace
}  // namespace syncline_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace syncline_torch;  // NOLINT: the bindings of this namespace.
  module.doc() = "The native backend \"syncline\" of torch.distributed. Use syncline.torch.";
  const py::object core = py::module_::import("syncline._syncline");
  const auto capsule = core.attr("_c_api")().cast<py::capsule>();
  api = static_cast<const SynclineCApi*>(PyCapsule_GetPointer(capsule.ptr(), SYNCLINE_C_API_NAME));
  if (api == nullptr) throw py::error_already_set();
  if (api->version != SYNCLINE_C_API_VERSION) {
    throw py::import_error("compiled for another version of syncline");
  }
  const py::object errors = py::module_::import("syncline.torch.backend.errors");
  translate = py::object(errors.attr("translated_any")).release().ptr();

  py::class_<Work, c10d::Work, Pointer<Work>>(module, "Work")
      .def("exception", &Work::PythonException)
      .def("get_future", &Work::PythonFuture);
  py::class_<FinishedWork, Work, Pointer<FinishedWork>>(module, "FinishedWork");
  py::class_<RunningWork, Work, Pointer<RunningWork>>(module, "RunningWork");
  py::class_<PythonWork, Work, Pointer<PythonWork>>(module, "PythonWork");
  py::class_<AllWork, Work, Pointer<AllWork>>(module, "AllWork");
  py::class_<Backend, c10d::Backend, Pointer<Backend>>(module, "Backend");
  py::class_<ProcessGroup, c10d::ProcessGroup, Pointer<ProcessGroup>>(module, "ProcessGroup")
      .def(py::init(&MakeGroup), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("group"), py::arg("fallback"))
      .def("_set_native_timeout", [](ProcessGroup& self, const py::object& timeout) {
        self.backend().SetTimeout(TimeoutFrom(timeout));
      });
  // What runs on this thread is called by a communication hook; returns what was before.
  module.def("_enter_hook", [](bool is_inside) { return std::exchange(is_in_hook, is_inside); });
}
