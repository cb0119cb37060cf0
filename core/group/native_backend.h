// Serves tensors of devices by a backend that works on them where they are.
#ifndef SYNCLINE_CORE_GROUP_NATIVE_BACKEND_H_
#define SYNCLINE_CORE_GROUP_NATIVE_BACKEND_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/group/device_backend.h"

namespace syncline::group {

// Hands calls on. Of plans, those that are several calls go to the backend as one group; those that
// have buffers get them in memory of the device, on a stream of their own, on which tensors of
// other devices are copied to this one and reduced by our kernels.
class NativeBackend final : public DeviceBackend {
 public:
  NativeBackend(std::shared_ptr<Backend> backend, const Capabilities& capabilities)
      : backend_(std::move(backend)), capabilities_(capabilities) {}

  Capabilities capabilities() const override { return capabilities_; }
  bool is_stream_ordered() const override { return capabilities_.is_stream_ordered; }
  bool needs_caller() const override { return capabilities_.is_stream_ordered; }
  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override;
  absl::StatusOr<Completion> RunPlan(const Plan& plan, const CallContext& context) override;
  bool CanSplit() const override { return backend_->CanSplit(); }
  absl::StatusOr<std::shared_ptr<ChildCommunicator>> Split(const SplitPlace& place,
                                                           const CallContext& context) override {
    return backend_->Split(place, context);
  }
  void Leave(const absl::Status& cause, const Deadline& deadline) override {
    backend_->Leave(cause, deadline);
  }
  void Abort(const absl::Status& cause) override { backend_->Abort(cause); }

 private:
  class PlanBuffers;

  absl::StatusOr<Completion> RunBuffered(const Plan& plan, const CallContext& context);
  // Enqueues the plan on `stream`, which uses `buffers` from then on.
  absl::StatusOr<Completion> Enqueue(const Plan& plan, const CallContext& context,
                                     device::DeviceRuntime& runtime, const Stream& stream,
                                     PlanBuffers& buffers);
  // The stream of plans on `device`.
  absl::StatusOr<std::shared_ptr<const Stream>> StreamOf(device::DeviceRuntime& runtime,
                                                         const Device& device);

  const std::shared_ptr<Backend> backend_;
  const Capabilities capabilities_;
  absl::Mutex mutex_;
  std::map<int, std::shared_ptr<const Stream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_NATIVE_BACKEND_H_
