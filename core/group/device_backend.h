// The backend of a group for tensors of devices.
#ifndef SYNCLINE_CORE_GROUP_DEVICE_BACKEND_H_
#define SYNCLINE_CORE_GROUP_DEVICE_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/group/plan.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/completion.h"

namespace syncline::group {

// Carries out calls, and plans, on tensors of devices. What it returns is a stream-ordered
// Completion, or one that is done where nothing is left to wait for.
// Thread-safe as a Backend is.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // What it serves, of tensors of devices.
  virtual Capabilities capabilities() const = 0;

  // Whether calls return once they are enqueued. The others move their bytes on the calling thread.
  virtual bool is_stream_ordered() const = 0;

  // Whether calls need CallContext::caller. A backend that does without sees to the order itself.
  virtual bool needs_caller() const = 0;

  virtual absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                         const CallContext& context) = 0;
  virtual absl::StatusOr<Completion> RunPlan(const Plan& plan, const CallContext& context) = 0;

  // As those of Backend.
  virtual bool CanSplit() const { return false; }
  virtual absl::StatusOr<std::shared_ptr<ChildCommunicator>> Split(const SplitPlace&,
                                                                   const CallContext&) {
    return std::shared_ptr<ChildCommunicator>();
  }
  virtual void Leave(const absl::Status& cause, const Deadline& /*deadline*/) { Abort(cause); }
  virtual void Abort(const absl::Status& cause) = 0;
};

// The backend for tensors of devices that `entry` means, where `backend` has been made from it:
// `backend` itself if it serves them; else the entry's backend for them, where all ranks can use
// that one; else one that copies them to memory of the host. Collective, as a factory of backends,
// where the entry names a backend for them. Requires that it serves tensors of devices.
absl::StatusOr<std::shared_ptr<DeviceBackend>> MakeDeviceBackend(
    const BackendRegistry::Entry& entry, const std::shared_ptr<Backend>& backend,
    const BackendConfig& config);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_DEVICE_BACKEND_H_
