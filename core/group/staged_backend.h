// Serves tensors of devices by a backend that works in memory of the host.
#ifndef SYNCLINE_CORE_GROUP_STAGED_BACKEND_H_
#define SYNCLINE_CORE_GROUP_STAGED_BACKEND_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "core/group/device_backend.h"
#include "core/group/staging_lane.h"

namespace syncline::group {

// Copies what a call reads to page-locked memory of the host, has the host's backend carry it out
// there, and copies back what the call writes. A long call goes in chunks: while the host's backend
// works on one, the next is copied from the device and the one before is copied back. All ranks of
// a call pass tensors of devices, since chunks are calls of the host's backend.
//
// The copies from the device wait for the caller's stream, on the host; a call returns when the
// copies back are enqueued. If a call fails, its copies have ended before it returns, unless the
// device stands still: then the tensors are kept until they have.
class StagedBackend final : public DeviceBackend {
 public:
  // Bytes of one chunk, of all tensors together: large enough for the full bandwidth of PCI
  // Express, small enough that the copies of the first and the last one, which overlap nothing, are
  // short.
  static constexpr size_t kChunkBytes = size_t{4} << 20;

  StagedBackend(std::shared_ptr<Backend> host, const Capabilities& capabilities,
                const BackendConfig& config, size_t chunk_bytes = kChunkBytes);

  Capabilities capabilities() const override { return capabilities_; }
  bool is_stream_ordered() const override { return false; }
  bool needs_caller() const override { return true; }
  absl::StatusOr<Completion> Run(absl::Span<const Collective> collectives,
                                 const CallContext& context) override;
  absl::StatusOr<Completion> RunPlan(const Plan& plan, const CallContext& context) override;
  // Ends waits for devices. The host's backend belongs to the group, which aborts it.
  void Abort(const absl::Status& cause) override;

 private:
  absl::StatusOr<int> RunInChunks(const Collective& collective, const CallContext& context,
                                  StagingLane& lane);
  absl::StatusOr<int> RunTogether(absl::Span<const Collective> collectives,
                                  const CallContext& context, StagingLane& lane);
  absl::Status RunHostPlan(const Plan& plan, const CallContext& context, StagingLane& lane);
  // Carries out, by `body`, a call whose copies go through a lane; returns what ends with the last
  // of them. `call` owns the call's tensors.
  absl::StatusOr<Completion> RunInLane(const CallContext& context, std::shared_ptr<const void> call,
                                       absl::FunctionRef<absl::StatusOr<int>(StagingLane&)> body);

  // Waits on the host, until the deadline, an interrupt or Abort.
  absl::Status Await(const device::Event& event, const Deadline& deadline) const;
  absl::StatusOr<StagingLane::Slot*> Acquire(StagingLane& lane, size_t n, size_t bytes,
                                             const Deadline& deadline) const;
  absl::Status aborted() const;

  const std::shared_ptr<Backend> host_;
  const Capabilities capabilities_;
  const int rank_;
  const int size_;
  const size_t chunk_bytes_;
  StagingLanes lanes_;
  mutable absl::Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_STAGED_BACKEND_H_
