#include "tests/backends/device_backend.h"

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/device/device_tensor.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using device::DeviceRuntime;

// The tensors of a call, on the host and on a device. Those that begin at one address are one.
class Copies {
 public:
  Copies(DeviceRuntime& runtime, const Device& device, const Stream& stream)
      : runtime_(runtime), device_(device), stream_(stream) {}

  absl::StatusOr<Tensor> OnDevice(const Tensor& host) {
    const auto key = std::make_pair(host.data(), host.nbytes());
    const auto known = copies_.find(key);
    if (host.numel() > 0 && known != copies_.end()) return known->second.second;
    SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, device::EmptyOn(device_, host.dtype(), host.shape()));
    SYNCLINE_RETURN_IF_ERROR(runtime_.Copy(copy.data(), host.data(), host.nbytes(), stream_));
    copies_[key] = {host, copy};
    return copy;
  }

  // Returns once nothing uses the tensors any more.
  absl::Status Synchronize() const {
    return runtime_.Synchronize(stream_, Deadline(absl::Minutes(1)));
  }

  // Returns once they are there.
  absl::Status CopyBack() const {
    for (const auto& [key, copy] : copies_) {
      SYNCLINE_RETURN_IF_ERROR(
          runtime_.Copy(copy.first.data(), copy.second.data(), copy.first.nbytes(), stream_));
    }
    return Synchronize();
  }

  const Stream& stream() const { return stream_; }

 private:
  DeviceRuntime& runtime_;
  const Device device_;
  const Stream stream_;
  std::map<std::pair<void*, size_t>, std::pair<Tensor, Tensor>> copies_;
};

class CopyingHandle final : public Completion::Handle {
 public:
  CopyingHandle(std::shared_ptr<Handle> handle, std::shared_ptr<Copies> copies)
      : handle_(std::move(handle)), copies_(std::move(copies)) {}

  absl::StatusOr<int> Wait(const Deadline& deadline) override {
    absl::StatusOr<int> outcome = handle_->Wait(deadline);
    if (!outcome.ok()) {
      SYNCLINE_RETURN_IF_ERROR(copies_->Synchronize());
      return outcome;
    }
    absl::MutexLock lock(&mutex_);
    if (has_copied_) return outcome;
    has_copied_ = true;
    if (handle_->is_stream_ordered()) {
      SYNCLINE_RETURN_IF_ERROR(handle_->EnqueueWait(copies_->stream()));
    }
    SYNCLINE_RETURN_IF_ERROR(copies_->CopyBack());
    return outcome;
  }
  bool IsDone() const override { return handle_->IsDone(); }
  void OnDone(std::function<void(const absl::StatusOr<int>&)> callback) override {
    // Tensors on the device are kept until then, too.
    handle_->OnDone([callback, copies = copies_](const auto& outcome) { callback(outcome); });
  }

 private:
  const std::shared_ptr<Handle> handle_;
  const std::shared_ptr<Copies> copies_;
  absl::Mutex mutex_;
  bool has_copied_ ABSL_GUARDED_BY(mutex_) = false;
};

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(std::string name, std::shared_ptr<Backend> backend, DeviceRuntime& runtime,
                const Device& device, std::shared_ptr<const Stream> stream)
      : name_(std::move(name)),
        backend_(std::move(backend)),
        runtime_(runtime),
        device_(device),
        stream_(std::move(stream)) {}

  absl::string_view name() const override { return name_; }

  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override {
    const auto copies = std::make_shared<Copies>(runtime_, device_, *stream_);
    std::vector<Collective> copied;
    bool has_tensors = false;
    for (const Collective& collective : collectives) {
      SYNCLINE_ASSIGN_OR_RETURN(Collective copy, Copy(collective, *copies));
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
      SYNCLINE_RETURN_IF_ERROR(copies->Synchronize());
      return completion;
    }
    if (completion->handle() == nullptr) {
      SYNCLINE_RETURN_IF_ERROR(copies->CopyBack());
      return completion;
    }
    return Completion(std::make_shared<CopyingHandle>(completion->handle(), copies));
  }

  void Abort(const absl::Status& cause) override { backend_->Abort(cause); }

 private:
  static absl::StatusOr<Collective> Copy(const Collective& collective, Copies& copies) {
    Collective copy = collective;
    if (collective.tensor != nullptr && collective.kind != OpKind::kBarrier) {
      SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, copies.OnDevice(*collective.tensor));
      copy.OwnTensor(std::move(tensor));
    }
    std::vector<Tensor> outputs, inputs;
    for (const Tensor& output : collective.outputs) {
      SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, copies.OnDevice(output));
      outputs.push_back(std::move(tensor));
    }
    for (const Tensor& input : collective.inputs) {
      SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, copies.OnDevice(input));
      inputs.push_back(std::move(tensor));
    }
    copy.OwnOutputs(std::move(outputs));
    copy.OwnInputs(std::move(inputs));
    return copy;
  }

  const std::string name_;
  const std::shared_ptr<Backend> backend_;
  DeviceRuntime& runtime_;
  const Device device_;
  const std::shared_ptr<const Stream> stream_;
};

absl::StatusOr<std::shared_ptr<Backend>> Make(const std::string& name, const std::string& as,
                                              const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(auto backend, BackendRegistry::Make(name, config));
  SYNCLINE_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, DeviceRuntime::Get());
  const Device device = {DeviceType::kCuda, config.rank % runtime->device_count()};
  SYNCLINE_ASSIGN_OR_RETURN(auto stream, runtime->MakeStream(device));
  return std::make_shared<DeviceBackend>(as, std::move(backend), *runtime, device,
                                         std::move(stream));
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
