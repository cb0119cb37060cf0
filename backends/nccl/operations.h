// What each operation enqueues: calls of NCCL, copies, and kernels for what NCCL lacks.
#ifndef SYNCLINE_BACKENDS_NCCL_OPERATIONS_H_
#define SYNCLINE_BACKENDS_NCCL_OPERATIONS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/group_support.h"
#include "backends/nccl/nccl_api.h"
#include "backends/nccl/nccl_group.h"
#include "core/device/device_runtime.h"
#include "core/device/kernels.h"
#include "syncline/collective.h"

namespace syncline::nccl {

// A reduction that NCCL carries out.
struct NativeReduction {
  NcclDataType dtype;
  int elements = 1;  // Of NCCL's type in each of the tensor: 2 for complex numbers.
  NcclRedOp op = kNcclSum;
  bool premultiplies = false;  // By the factor of the rank.
  bool divides = false;        // By the number of ranks, afterwards, with a kernel.
};

// How NCCL reduces such elements; nothing if it does not, and a kernel has to. avg of integers
// divides with a kernel where all ranks have one.
absl::optional<NativeReduction> NativeReductionOf(DType dtype, ReduceOp op,
                                                  const GroupSupport& support);

// OK if the operation can be carried out; an UnsupportedError that says what is missing, and on
// which rank, if not. The same on all ranks.
absl::Status CheckServed(const Collective& collective, const GroupSupport& support);

// Enqueues the calls that one Run has been given on the streams of their communicators. All that
// NCCL can do at once is one ncclGroup, so that none of it waits for the rest; operations of
// several steps follow one after another, in the same order on all ranks. A message of another
// device than its channel's communicator is copied to memory of the latter's, or from it.
class Operations {
 public:
  struct Part {
    const Collective* collective;
    Communicator* communicator;
    const Stream* stream;  // Of the communicator's device.
  };

  // Borrows all, for the time of one Run. `is_captured` says whether a graph gets the work.
  Operations(Communicators& communicators, const GroupSupport& support, NcclGroup& group,
             const PublishedCall& call, bool is_captured)
      : communicators_(communicators),
        api_(communicators.api()),
        runtime_(communicators.runtime()),
        support_(support),
        group_(group),
        call_(call),
        is_captured_(is_captured) {}

  // An error leaves the work in an unknown state: the group has failed then.
  absl::Status Enqueue(absl::Span<const Part> parts);

  // Memory that the enqueued work uses beside the tensors.
  std::vector<std::shared_ptr<void>> TakeKept() { return std::move(kept_); }

 private:
  struct Step;

  // A part that NCCL does at once: Prepare comes before the ncclGroup, Finish after it.
  absl::Status Prepare(const Part& part, Step& step);
  absl::Status EnqueueInGroup(const Part& part, Step& step);
  absl::Status Finish(const Part& part, const Step& step);

  absl::Status EnqueueSplitMoves(const Part& part);
  absl::Status EnqueueReduction(const Part& part, const Step& step);

  // Several steps each.
  absl::Status EnqueueSteps(const Part& part);
  absl::Status ReduceByKernels(const Part& part, const device::Kernels& kernels);
  absl::Status ReduceScatterByKernels(const Part& part, const device::Kernels& kernels);
  absl::Status ScanByKernels(const Part& part, const device::Kernels& kernels);

  absl::Status Group(absl::Span<Communicator* const> used, absl::FunctionRef<absl::Status()> body);
  absl::Status Check(const char* function, NcclResult result) const;
  absl::Status CopyTo(const Tensor& to, const Tensor& from, const Part& part);
  // Memory of at least so many bytes, for the work that is enqueued next.
  absl::StatusOr<char*> Scratch(const Part& part, size_t bytes);

  Communicators& communicators_;
  const NcclApi& api_;
  device::DeviceRuntime& runtime_;
  const GroupSupport& support_;
  NcclGroup& group_;
  const PublishedCall& call_;
  const bool is_captured_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<const Communicator*> taken_;  // Whose scratch memory is in use.
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_OPERATIONS_H_
