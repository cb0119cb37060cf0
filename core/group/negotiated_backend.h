// Chooses the backend for tensors of devices at the first call on them.
#ifndef SYNCLINE_CORE_GROUP_NEGOTIATED_BACKEND_H_
#define SYNCLINE_CORE_GROUP_NEGOTIATED_BACKEND_H_

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/group/device_backend.h"
#include "syncline/backend_registry.h"

namespace syncline::group {

// Takes a preferred backend, such as nccl, where all ranks that take part in a call can use it, and
// a fallback otherwise. Nothing is loaded or asked before the first call on tensors of a device, so
// a group that has none of them does not notice.
//
// Each rank publishes at its first call whether it can use the preferred backend, under the key
// "use/RANK": an empty value if it can, else why not. A collective waits for the keys of all
// ranks, a message for that of the other one; a rank that cannot use it waits for nobody. So all
// ranks of a call decide alike.
class NegotiatedBackend final : public DeviceBackend {
 public:
  // `config` is what the preferred backend is made with, except for its store, which is a part of
  // the one of `config`.
  NegotiatedBackend(std::string preferred, BackendConfig config,
                    std::shared_ptr<DeviceBackend> fallback);

  Capabilities capabilities() const override;
  bool is_stream_ordered() const override;
  bool needs_caller() const override { return true; }
  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override;
  absl::StatusOr<Completion> RunPlan(const Plan& plan, const CallContext& context) override;
  void Abort(const absl::Status& cause) override;

 private:
  // The backend for calls with `peer`; with all ranks if that is Collective::kNoPeer.
  absl::StatusOr<std::shared_ptr<DeviceBackend>> Choose(const Collective& collective,
                                                        const CallContext& context);
  // Whether this rank can use the preferred backend; publishes it the first time.
  absl::StatusOr<bool> CanUse();
  // Whether `rank` can, once it has said so.
  absl::StatusOr<bool> CanUse(int rank, const CallContext& context);
  absl::StatusOr<std::shared_ptr<DeviceBackend>> MakePreferred();

  const std::string preferred_;
  const BackendConfig config_;
  const std::shared_ptr<DeviceBackend> fallback_;
  mutable absl::Mutex mutex_;
  std::optional<bool> can_use_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceBackend> made_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  // The decisions so far, by peer.
  std::map<int, std::shared_ptr<DeviceBackend>> chosen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_NEGOTIATED_BACKEND_H_
