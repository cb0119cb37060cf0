// Communication hooks: how a reducer averages a bucket of gradients, in place of one all-reduce.
#ifndef SYNCLINE_COMM_HOOK_H_
#define SYNCLINE_COMM_HOOK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/device.h"
#include "syncline/process_group.h"
#include "syncline/tensor.h"
#include "syncline/work.h"

namespace syncline {

// Gradients of one element type that are averaged together.
struct GradBucket {
  int64_t index = 0;    // In the order of reduction.
  int64_t count = 1;    // How many buckets a step has.
  int64_t step = 0;     // Steps of the reducer that communicated before this one.
  int64_t divisor = 1;  // What the sum over the ranks is divided by: most often their number.
  Tensor buffer;        // Flat: this rank's gradients, and afterwards the average.
  std::vector<Tensor> gradients;    // The parts of `buffer`, of the parameters' shapes.
  std::vector<int64_t> parameters;  // Their indices, as given to the reducer.

  bool is_last() const { return index + 1 == count; }
};

// Belongs to one reducer at a time, which shares its ownership with the user. Calls come one at a
// time, from any thread. An error of a call fails the reducer's step on all ranks.
//
//   class SumHook : public CommHook {
//    public:
//     std::string name() const override { return "sum"; }
//     absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
//       group_ = std::move(group);
//       return absl::OkStatus();
//     }
//     absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
//       return group_->AllReduceAsync(bucket->buffer);  // The sum, in place of the average.
//     }
//    private:
//     std::shared_ptr<ProcessGroup> group_;
//   };
class CommHook {
 public:
  virtual ~CommHook() = default;

  // "power_sgd": for messages and statistics.
  virtual std::string name() const = 0;

  // Where the reducer's buckets are, before Attach. Returns an UnsupportedError that says which
  // hooks work there if this one does not. On a device, buckets are ready on the current stream of
  // the thread that calls Start, and nothing of them is touched on the host; the Work of a call on
  // the device's tensors makes streams wait in place of the host.
  virtual absl::Status SetDevice(const Device& device) {
    static_cast<void>(device);
    return absl::OkStatus();
  }

  // The group to communicate in. Before anything else, and again when the reducer's group is
  // replaced: what was kept for each bucket is then void, and buckets may still be in flight in the
  // old group. Collective.
  virtual absl::Status Attach(std::shared_ptr<ProcessGroup> group) = 0;

  // Begins to average `bucket->buffer` over the group's ranks; the Work ends when it holds the
  // average, the same on all ranks. Called for the buckets of a step in order, the same on every
  // rank, on whichever thread made the last gradient ready: it should return soon.
  virtual absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) = 0;

  // The buckets have changed: what was kept for each of them is void. No bucket is in flight.
  virtual void Reset() {}

  // For reducers. A reducer acquires the hook before it uses it, and releases it at the end.
  // Returns false if another reducer has it: the state that the hook keeps by bucket would mix.
  // Thread-safe.
  bool Acquire(const void* reducer) {
    const void* owner = nullptr;
    return owner_.compare_exchange_strong(owner, reducer) || owner == reducer;
  }
  // Does nothing if `reducer` does not have the hook.
  void Release(const void* reducer) { owner_.compare_exchange_strong(reducer, nullptr); }

 private:
  std::atomic<const void*> owner_{nullptr};
};

}  // namespace syncline

#endif  // SYNCLINE_COMM_HOOK_H_
