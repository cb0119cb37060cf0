// A derived collective: one call of the backend, with what this rank does before and after it.
#ifndef SYNCLINE_CORE_GROUP_PLAN_H_
#define SYNCLINE_CORE_GROUP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline::group {

// Data, not code: derived.h makes plans of the user's tensors, and RunPlan carries them out. The
// backend works on buffers that RunPlan makes, so that a plan which waits for its turn takes no
// memory. Holds the user's tensors.
struct Plan {
  // A location in the buffers: in `tensor` of the collective, or in a part of its outputs or
  // inputs.
  struct Location {
    static constexpr int kTensor = -1;

    int part = kTensor;
    int64_t offset = 0;  // In bytes.

    // Where it is in `call`, which MakeCall has made.
    std::byte* In(const Collective& call) const;
  };

  // Before the call: `from` is copied to a location; several tensors are reduced into it, by the
  // collective's reduction, where an average stays a sum.
  struct Load {
    std::vector<Tensor> from;
    Location to;
  };

  // After the call: a tensor gets the bytes at a location.
  struct Store {
    Location from;
    Tensor to;
  };

  // A plan for a collective of `kind`, with a buffer of `count` elements for `tensor` and `parts`
  // more of them for the outputs of all_gather or the inputs of reduce_scatter. The user's tensors
  // are what ranks compare, see Collective::user_tensors.
  Plan(Collective collective, DType dtype, int64_t count, int parts,
       std::vector<Tensor> user_tensors);

  // A plan whose collective works on a tensor of the user.
  Plan(Collective collective, std::vector<Tensor> user_tensors);

  // The collective, where there are buffers with those that `make` makes for so many elements.
  absl::StatusOr<Collective> MakeCall(
      absl::FunctionRef<absl::StatusOr<Tensor>(DType dtype, int64_t count)> make) const;

  // The call of the backend. Its tensors have the type, but no elements where RunPlan makes them.
  Collective collective;
  bool has_buffers = false;
  int64_t count = 0;
  int parts = 0;
  std::vector<Load> loads;
  // The result is divided by it first, where the reduction is an average: the number of tensors
  // that each rank has reduced before the call.
  int divisor = 1;
  std::vector<Store> stores;
  // Calls on the user's tensors that do the same without buffers. For backends that carry out
  // several at once, as NCCL does; empty if there are none.
  std::vector<Collective> separate;

  // A load for each tensor, or a store to each, one after another from the beginning of a part.
  void LoadPacked(absl::Span<const Tensor> tensors, int part = Location::kTensor);
  void StorePacked(int part, absl::Span<const Tensor> tensors);
};

// Loads, calls, stores. BackendError where there is no memory for the buffers; else what the call
// returns. Nothing is stored unless the call has succeeded.
absl::Status RunPlan(const Plan& plan, const CallContext& context, Backend& backend);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_PLAN_H_
