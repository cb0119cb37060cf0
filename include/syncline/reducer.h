// Reducer: averages gradients over all ranks, overlapped with the backward pass.
#ifndef SYNCLINE_REDUCER_H_
#define SYNCLINE_REDUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/comm_hook.h"
#include "syncline/process_group.h"
#include "syncline/reducer_stats.h"
#include "syncline/tensor.h"

namespace syncline {

// How large buckets become before they are closed, in bytes. The first one is small, so that
// communication starts early in the backward pass.
struct BucketCaps {
  int64_t first = int64_t{1} << 20;
  int64_t others = int64_t{25} << 20;
  // If not empty, in place of these: the cap of each bucket. The last one holds for all that
  // follow.
  std::vector<int64_t> list = {};
};

// A sparse gradient: `values[k]` belongs to row `indices[k]`, which may repeat.
struct SparseRows {
  Tensor indices;  // int64, of shape [n].
  Tensor values;   // Of shape [n, columns...].
};

// Method: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
// VLDB 2020, section 3.2. Gradients live in flat buckets; a bucket is averaged in the background
// as soon as its last gradient is ready and all buckets before it have started, so that every rank
// reduces them in the same order whatever the order in which its gradients become ready.
//
// One step: for each parameter write gradient(i), then MarkReady(i); at the end Finish():
//
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Reducer> reducer,
//                             Reducer::Create(group, parameters, Reducer::Options()));
//   for (each step) {
//     for (int64_t i = parameters.size() - 1; i >= 0; --i) {
//       SYNCLINE_RETURN_IF_ERROR(reducer->CopyReady(i, Gradient(i)));
//     }
//     SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
//     // reducer->gradient(i) is the average over all ranks.
//   }
//
// Users share it by shared_ptr; it keeps the group and the hook. Gradients of different parameters
// may be written and marked from different threads; the other methods are for one thread at a time,
// which in "Collective" ones calls them in the same order on all ranks.
//
// On a CUDA device, all of whose parameters a reducer has, the calls are work of streams, as those
// of a group are (docs/cuda.md). A gradient is ready behind the current stream of the thread that
// marks it, and threads may have different ones; buckets are filled and averaged on streams of
// their own, beside what computes the next gradients; and Finish makes the current stream wait, not
// the host. The host waits only for the other ranks to come to the end of the step, by way of the
// group's backend for tensors of the host. A group that has none (backend "nccl") does without:
// there a rank with a fault ends the group, and Unused::kFound waits for the device. Making the
// reducer, the first step, which makes the buckets again, CountActive and ReplaceGroup wait too.
// What the program has enqueued on gradients must have ended when the reducer is destroyed.
//
// It averages gradients, not parameters: make these equal at the start, by BroadcastCoalesced.
//
// At the end of the first step that communicated, unless unused parameters are looked for in each
// step (Unused::kFound), all ranks rebuild the buckets in the order in which rank 0's gradients
// came; gradient(i) is then another view: ask again when generation() changes.
//
// An error of one rank that it can report to the others (a parameter without a gradient) is
// returned by Finish on all ranks. It names rank and parameter, and ends the step, nothing else.
// Errors of the group break the group: see ReplaceGroup.
class Reducer {
 public:
  // What a rank may do about parameters that it has no gradient for.
  enum class Unused {
    kRefused,   // Finish fails on all ranks.
    kFound,     // They count as zeros. In each step the ranks find out together which those are.
    kRecorded,  // The same, but those of the first step are those of all steps (static graph).
  };

  struct Options {
    std::vector<std::string> names;  // One for each parameter, for messages; or none.
    BucketCaps caps;
    std::vector<int64_t> sparse;  // Parameters whose gradients are rows: MarkReadySparse.
    Unused unused = Unused::kRefused;
    bool rebuild = true;             // In the order of arrival, as said above.
    std::shared_ptr<CommHook> hook;  // None: all-reduce.
  };

  enum class Sync { kAllRanks, kNone };

  struct Step {
    // kNone: gradients stay this rank's own, and CopyReady of later steps adds to them, up to and
    // with the next step that communicates (accumulation, no_sync). A parameter that gets none in
    // that step has the sum of the earlier ones.
    Sync sync = Sync::kAllRanks;
    // Known to get no gradient in this step, which starts their buckets earlier. Not with kRefused.
    std::vector<int64_t> unused;
    // What sums are divided by; 0: the number of ranks. Equal on all ranks.
    int64_t divisor = 0;
  };

  // The rows of a sparse gradient: int64 `indices` of shape [n], `values` of shape [n, columns...].
  using Rows = SparseRows;

  // Plans and allocates the buckets for gradients of the types and shapes of `parameters`, whose
  // elements are not looked at. Collective: a MismatchError on all ranks names the first parameter
  // or option on which ranks differ.
  static absl::StatusOr<std::shared_ptr<Reducer>> Create(std::shared_ptr<ProcessGroup> group,
                                                         const std::vector<Tensor>& parameters,
                                                         Options options);
  ~Reducer();

  // Begins a step. Needed only for a Step that is not the default: the first gradient begins one
  // too. A step under way is an ArgumentError.
  absl::Status BeginStep(const Step& step);

  // Gradient `index`, of its parameter's shape: a view into its bucket. Write it before MarkReady
  // and leave it alone until Finish, after which it holds the average.
  absl::StatusOr<Tensor> gradient(int64_t index) const;

  // The gradient has been written. ArgumentError if it is marked twice in a step. Where it starts a
  // bucket, also the error of that, which Finish returns too.
  absl::Status MarkReady(int64_t index);

  // Copies `value`, contiguous and of the parameter's type and size, into gradient(index), and
  // marks it. On a device, a value that has an owner is kept, and copied with the others of its
  // bucket: it must not change before the stream waits for Finish or AwaitBucket. One without is
  // copied behind the current stream, and may be changed there at once.
  absl::Status CopyReady(int64_t index, const Tensor& value);

  // The same for a sparse parameter: copies the rows. Not on a device.
  absl::Status MarkReadySparse(int64_t index, const Rows& rows);

  // Waits until the average of bucket `b` of the step under way is there, for callers that can use
  // it before they call Finish. Returns false, at once, if not all gradients of the buckets up to
  // it are ready, and if averaging has failed or is left to Finish, which says why. Only Finish
  // knows whether all ranks have had gradients for its parameters.
  absl::StatusOr<bool> AwaitBucket(int64_t b);

  // Waits until all buckets are averaged and ends the step. On a device the current stream waits:
  // OK then says that all is enqueued, and a later call returns what goes wrong.
  absl::Status Finish();

  // Of the last step: whether any rank had a gradient for it. If not, gradient(index) is zeros.
  absl::StatusOr<bool> is_used(int64_t index) const;

  // Of the last step: all ranks' rows in the order of ranks, values divided.
  absl::StatusOr<Rows> rows(int64_t index) const;

  // Uneven inputs. Every rank that still has input calls CountActive(kActive) before each step and
  // passes the result as its divisor, or none. A rank that has run out (a joined rank, as in
  // torch's Join) repeats CountActive(kJoined) and, unless that is 0, ShadowStep: a step that takes
  // part in all operations with zeros.
  enum class Activity { kActive, kJoined };
  absl::StatusOr<int64_t> CountActive(Activity mine);
  absl::Status ShadowStep(int64_t divisor);

  // How buckets are averaged from the next step on; none: all-reduce. Collective, between steps.
  absl::Status SetHook(std::shared_ptr<CommHook> hook);

  // Goes on in another group after a failure, and drops a step under way. Collective over the
  // new group: a MismatchError if its ranks have different parameters or options, else all take the
  // order of the buckets and the count of steps from its rank 0.
  absl::Status ReplaceGroup(std::shared_ptr<ProcessGroup> group);

  // The parameters of each bucket, in the order of reduction; those of sparse ones come last.
  std::vector<std::vector<int64_t>> buckets() const;
  // How often the buckets have been made: gradient() is elsewhere when it changes.
  int64_t generation() const;

  ReducerStats stats() const;

 private:
  class Impl;
  explicit Reducer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace syncline

#endif  // SYNCLINE_REDUCER_H_
