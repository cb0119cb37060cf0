// Averages gradients over all ranks, overlapped with the backward pass.
#ifndef SYNCLINE_DDP_REDUCER_H_
#define SYNCLINE_DDP_REDUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/process_group.h"
#include "core/tensor.h"
#include "core/work.h"
#include "ddp/bucketing.h"

namespace syncline {

// Method: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
// VLDB 2020, section 3.2. Gradients live in flat buckets; a bucket is all-reduced in the background
// as soon as its last gradient is ready and all buckets before it have started, so that every rank
// reduces them in the same order whatever the order in which its gradients become ready.
//
// One step: for each parameter write gradient(i), then MarkReady(i); at the end Finish(). Gradients
// of different parameters may be written and marked from different threads.
class Reducer {
 public:
  struct Options {
    std::vector<std::string> names;  // One for each parameter, for messages; or none.
    BucketCaps caps;
  };

  // Plans and allocates the buckets for gradients of the types and shapes of `parameters`, whose
  // elements are not looked at. Collective: a MismatchError on all ranks names the first parameter
  // on which the ranks differ.
  static absl::StatusOr<std::shared_ptr<Reducer>> Create(std::shared_ptr<ProcessGroup> group,
                                                         const std::vector<Tensor>& parameters,
                                                         Options options);

  // The place of gradient `index`, of its parameter's shape: a view into its bucket. To be written
  // before MarkReady and left alone until Finish, after which it holds the average.
  absl::StatusOr<Tensor> gradient(int64_t index) const;

  // The gradient has been written. ArgumentError if it is marked twice in a step.
  absl::Status MarkReady(int64_t index);

  // Copies `value`, contiguous and of the parameter's type and size, into place, and marks it.
  absl::Status CopyReady(int64_t index, const Tensor& value);

  // Waits until all buckets are reduced and begins the next step. ArgumentError, which ends
  // nothing, if parameters have not been marked; it names them.
  absl::Status Finish();

  // The parameters of each bucket, in the order of reduction.
  const std::vector<std::vector<int64_t>>& buckets() const { return buckets_; }

 private:
  struct Bucket {
    Tensor flat;
    size_t pending = 0;  // Gradients not yet ready in this step.
    std::shared_ptr<Work> work;
  };

  Reducer(std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters,
          Options options);

  absl::Status CheckIndex(int64_t index) const;
  std::string NameOf(int64_t index) const;
  absl::Status StartReadyBuckets() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ProcessGroup> group_;
  const Options options_;
  std::vector<std::vector<int64_t>> buckets_;
  std::vector<Tensor> gradients_;  // By parameter.
  std::vector<size_t> bucket_of_;  // By parameter.
  absl::Mutex mutex_;
  std::vector<Bucket> state_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> ready_ ABSL_GUARDED_BY(mutex_);
  size_t next_bucket_ ABSL_GUARDED_BY(mutex_) = 0;  // The first that has not been started.
};

}  // namespace syncline

#endif  // SYNCLINE_DDP_REDUCER_H_
