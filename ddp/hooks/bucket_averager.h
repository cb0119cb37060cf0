// How a bucket is averaged step by step: what most communication hooks are made of.
#ifndef SYNCLINE_DDP_HOOKS_BUCKET_AVERAGER_H_
#define SYNCLINE_DDP_HOOKS_BUCKET_AVERAGER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "syncline/comm_hook.h"
#include "syncline/device.h"
#include "syncline/process_group.h"

namespace syncline::ddp {

// Made a CommHook by MakeBlockingHook. Calls come one at a time, whatever the thread.
class BucketAverager {
 public:
  virtual ~BucketAverager() = default;

  // "power_sgd": for messages and statistics.
  virtual std::string name() const = 0;

  // The name and the options: what must be equal on all ranks.
  virtual std::string ToString() const { return name(); }

  // Where buckets are; before Attach. By default an UnsupportedError for what is not the CPU, as
  // most work on the elements there. On a device, Average must touch them by work on the current
  // stream alone, for which nobody waits on the host.
  virtual absl::Status SetDevice(const Device& device);

  // Before the first bucket, and again when the group is replaced. Collective. `group` has all
  // ranks of the reducer's, and carries nothing but this hook's operations.
  virtual absl::Status Attach(const std::shared_ptr<ProcessGroup>& group) {
    static_cast<void>(group);
    return absl::OkStatus();
  }

  // Leaves the average over the group's ranks in `bucket.buffer`: their sum, divided by
  // `bucket.divisor`. All ranks are given the same buckets in the same order.
  virtual absl::Status Average(GradBucket& bucket, ProcessGroup& group) = 0;

  // The buckets have changed: what was kept for each of them is void.
  virtual void Reset() {}

  // The group of its own that it works in besides that which Attach was given, or null. Asked after
  // Attach: buckets are averaged well only if it is whole, and it is closed with the other.
  virtual std::shared_ptr<ProcessGroup> own_group() const { return nullptr; }

  // Ends what is in flight in groups of its own, if it has any. From any thread, also during
  // another call.
  virtual void Abort(absl::string_view reason) { static_cast<void>(reason); }
};

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_BUCKET_AVERAGER_H_
