// A c10d::Backend over a process group of Syncline's, and torch's process group over that.
//
// Tensors of the CPU go to Syncline's core without Python. All that is not common there goes to the
// same operation written in Python (syncline/torch/backend): tensors of devices, sparse ones, those
// of subclasses, and arguments that it refuses, whose errors are then the same.
#ifndef SYNCLINE_TORCH_NATIVE_BACKEND_H_
#define SYNCLINE_TORCH_NATIVE_BACKEND_H_

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "c_api.h"

namespace syncline_torch {

template <typename T>
using Pointer = c10::intrusive_ptr<T>;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = Pointer<c10d::Work>;

class Call;

// Thread-safe, except that one thread at a time coalesces.
class Backend : public c10d::Backend {
 public:
  // `group` is a syncline._syncline.ProcessGroup. fallback(name, *arguments) calls a method of the
  // process group in Python. A negative timeout stands for the group's own. Requires the GIL.
  Backend(int rank, int size, const py::object& group, py::object fallback, int64_t timeout_ns);
  ~Backend() override;

  const std::string getBackendName() const override { return "syncline"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Negative: the group's own.
  void SetTimeout(int64_t nanoseconds) { timeout_ns_ = nanoseconds; }
  void abort() override;
  void shutdown() override;

  // What is called in between is one Work, that of endCoalescing.
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& opts) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& opts) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& opts) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& opts) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& opts) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& opts) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& opts) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}  // Syncline counts the calls itself.
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& opts) override;

 private:
  // Runs `call`, or starts it. `written` are the tensors that the Work has as its result.
  WorkPointer Issue(Call& call, bool in_background, std::chrono::milliseconds timeout,
                    Tensors written);
  template <typename CallOptions>
  WorkPointer Issue(Call& call, const CallOptions& opts, Tensors written);
  // The same operation in Python.
  template <typename... Arguments>
  WorkPointer InPython(const char* method, Arguments&&... arguments);
  template <typename... Arguments>
  void CallPython(const char* method, Arguments&&... arguments);
  // Adds `work` to those that are coalesced, if any are.
  bool Collect(const WorkPointer& work);

  SynclineGroup* const group_;
  py::object fallback_;
  std::atomic<int64_t> timeout_ns_;
  std::atomic<bool> is_coalescing_{false};
  std::mutex mutex_;
  std::vector<WorkPointer> collected_;  // Under mutex_.
};

// torch's process group. Operations skip torch's dispatcher unless something watches it: a profiler
// or a dispatch mode.
class ProcessGroup : public c10d::ProcessGroup {
 public:
  ProcessGroup(const Pointer<c10d::Store>& store, int rank, int size, Pointer<Backend> backend);

  const std::string getBackendName() const override { return "syncline"; }
  const std::string& getGroupName() const override { return name_; }
  void setGroupName(const std::string& name) override;
  const std::string& getGroupDesc() const override { return description_; }
  void setGroupDesc(const std::string& description) override;
  void setSequenceNumberForGroup() override {}
  // torch's registry of groups has weak pointers, which keep the object, but not what it holds,
  // until the process ends.
  void release_resources() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& opts) override;
  WorkPointer all_gather_single(at::Tensor& output, at::Tensor& input,
                                const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) override;
  WorkPointer all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& opts) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& opts) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& opts) override;
  WorkPointer reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& opts) override;
  WorkPointer reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& opts) override;
  WorkPointer all_to_all_single(at::Tensor& output, at::Tensor& input,
                                std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits,
                                const c10d::AllToAllOptions& opts) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& opts) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& opts) override;

  Backend& backend() { return *backend_; }

 private:
  Pointer<Backend> backend_;
  std::string name_;
  std::string description_ = "undefined";
};

}  // namespace syncline_torch

#endif  // SYNCLINE_TORCH_NATIVE_BACKEND_H_
