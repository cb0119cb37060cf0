#include "tests/backends/device_backend.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "tests/support/device_calls.h"

namespace syncline {
namespace {

using device::DeviceRuntime;

class CopyingHandle final : public Completion::Handle {
 public:
  CopyingHandle(std::shared_ptr<Handle> handle, std::shared_ptr<DeviceTensors> tensors,
                std::shared_ptr<const Stream> stream)
      : handle_(std::move(handle)), tensors_(std::move(tensors)), stream_(std::move(stream)) {}

  absl::StatusOr<int> Wait(const Deadline& deadline) override {
    absl::StatusOr<int> outcome = handle_->Wait(deadline);
    const StreamScope scope(*stream_);
    if (!outcome.ok()) {
      SYNCLINE_RETURN_IF_ERROR(tensors_->Synchronize());
      return outcome;
    }
    absl::MutexLock lock(&mutex_);
    if (has_copied_) return outcome;
    has_copied_ = true;
    if (handle_->is_stream_ordered()) {
      SYNCLINE_RETURN_IF_ERROR(handle_->EnqueueWait(*stream_));
    }
    SYNCLINE_RETURN_IF_ERROR(tensors_->CopyBack());
    return outcome;
  }
  bool IsDone() const override { return handle_->IsDone(); }
  void OnDone(std::function<void(const absl::StatusOr<int>&)> callback) override {
    // Tensors on the device are kept until then, too.
    handle_->OnDone([callback, tensors = tensors_](const auto& outcome) { callback(outcome); });
  }

 private:
  const std::shared_ptr<Handle> handle_;
  const std::shared_ptr<DeviceTensors> tensors_;
  const std::shared_ptr<const Stream> stream_;
  absl::Mutex mutex_;
  bool has_copied_ ABSL_GUARDED_BY(mutex_) = false;
};

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(std::string name, std::shared_ptr<Backend> backend, DeviceRuntime& runtime,
                std::shared_ptr<const Stream> stream)
      : name_(std::move(name)),
        backend_(std::move(backend)),
        runtime_(runtime),
        stream_(std::move(stream)) {}

  absl::string_view name() const override { return name_; }

  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override {
    const StreamScope scope(*stream_);
    const auto tensors = std::make_shared<DeviceTensors>(stream_->device);
    std::vector<Collective> copied;
    bool has_tensors = false;
    for (const Collective& collective : collectives) {
      SYNCLINE_ASSIGN_OR_RETURN(Collective copy, tensors->Of(collective));
      has_tensors |= collective.kind != OpKind::kBarrier;
      copied.push_back(std::move(copy));
    }
    CallContext inner = context;
    CallerStream caller = {*stream_, nullptr, {}};
    if (has_tensors) {
      SYNCLINE_ASSIGN_OR_RETURN(caller.ready, runtime_.Record(*stream_));
      inner.caller = &caller;
    }
    const absl::StatusOr<Completion> completion = backend_->Run(copied, inner);
    if (!completion.ok()) {
      SYNCLINE_RETURN_IF_ERROR(tensors->Synchronize());
      return completion;
    }
    if (completion->handle() == nullptr) {
      SYNCLINE_RETURN_IF_ERROR(tensors->CopyBack());
      return completion;
    }
    return Completion(std::make_shared<CopyingHandle>(completion->handle(), tensors, stream_));
  }

  void Abort(const absl::Status& cause) override { backend_->Abort(cause); }

 private:
  const std::string name_;
  const std::shared_ptr<Backend> backend_;
  DeviceRuntime& runtime_;
  const std::shared_ptr<const Stream> stream_;
};

absl::StatusOr<std::shared_ptr<Backend>> Make(const std::string& name, const std::string& as,
                                              const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(auto backend, BackendRegistry::Make(name, config));
  SYNCLINE_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(config.rank));
  SYNCLINE_ASSIGN_OR_RETURN(auto stream, runtime->MakeStream(device));
  return std::make_shared<DeviceBackend>(as, std::move(backend), *runtime, std::move(stream));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> MakeOnDevices(const std::string& name,
                                                       const BackendConfig& config) {
  return Make(name, name, config);
}

BackendRegistry::Registration RegisterOnDevices(const std::string& name, const std::string& as,
                                                Capabilities capabilities) {
  const auto make = [name, as](const BackendConfig& config) { return Make(name, as, config); };
  return BackendRegistry::Registration(as, {std::move(capabilities), make});
}

}  // namespace syncline
