// One operation of one rank, as data: checked, described and handed to a backend in one place.
#ifndef SYNCLINE_CORE_GROUP_OPERATION_H_
#define SYNCLINE_CORE_GROUP_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/group/backend.h"
#include "core/tensor/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// The arguments of a call. Which fields mean something depends on `kind`.
struct Operation {
  // What is done with the backend in place of the one call of it that the other fields describe.
  // Returns the rank that sent what was received, if that is what it does.
  using Body = std::function<absl::StatusOr<int>(const CallContext& context, Backend& backend)>;

  // Faster than the initialization of an aggregate: this is on the way of every call.
  explicit Operation(OpKind kind, const Tensor* tensor = nullptr,
                     absl::Span<const Tensor> outputs = {}, absl::Span<const Tensor> inputs = {},
                     ReduceOp reduce_op = ReduceOp::kSum, double factor = 1.0, int64_t peer = 0)
      : kind(kind),
        reduce_op(reduce_op),
        factor(factor),
        peer(peer),
        tensor(tensor),
        outputs(outputs),
        inputs(inputs) {}

  OpKind kind;
  ReduceOp reduce_op;  // Of those that reduce.
  double factor;       // premul_sum: this rank's elements are multiplied by it.
  int64_t peer;        // The root, or the other rank of send and recv.
  int64_t tag = 0;     // send, recv

  // The caller's, which must outlive the operation, or held by it and its copies: see Hold.
  const Tensor* tensor;  // Of all but all_to_all and barrier; of all_gather and gather the input,
                         // of scatter and reduce_scatter the output.
  absl::Span<const Tensor> outputs;  // all_gather, all_to_all; gather on the root.
  absl::Span<const Tensor> inputs;   // reduce_scatter, all_to_all; scatter on the root.
  absl::string_view alias;           // The user's name for it, if not that of `kind`. A literal.
  Body body;
  // Of an operation on several tensors, which `body` packs: those of the user that must be as many,
  // of the same types and sizes, on all ranks.
  std::shared_ptr<const std::vector<Tensor>> listed;

  // Makes the operation hold its tensors: those that it has, or others.
  void Hold();
  void HoldTensor(Tensor held);
  void HoldOutputs(std::vector<Tensor> list);
  void HoldInputs(std::vector<Tensor> list);

  absl::string_view name() const { return alias.empty() ? Name(kind) : alias; }
  DType dtype() const;  // Of the elements that move.
  DeviceType device() const;

  // "all_reduce #1580".
  std::string ShortName(uint64_t sequence) const;
  // "all_reduce #1580 (float32[4096] on cpu, sum)".
  std::string ToString(uint64_t sequence) const;

  // Of CallForm. "float32[2], 3 x int32[4]" of the listed, shortened if there are very many; and
  // the hash of all of them, with the name.
  std::string ListedToString() const;
  uint64_t FormHash() const;

 private:
  const Tensor* Moved() const {  // Null if it has none.
    return kind == OpKind::kAllToAll && !inputs.empty() ? inputs.data() : tensor;
  }

  std::shared_ptr<const Tensor> held_tensor_;
  std::shared_ptr<const std::vector<Tensor>> held_outputs_, held_inputs_;
};

// The one check of arguments, for all backends: ranks in range, tensors contiguous, on a device of
// the backend, writable where they are written, equal in type, of sizes that fit and apart from
// each other where they must be, and the whole within the backend's capabilities. ArgumentError,
// TypeError or UnsupportedError that says what was expected. `backend` is its name. Lists that a
// body packs into the operation's tensors are checked where they come in, see
// core/group/composed.h.
absl::Status Validate(const Operation& operation, const Capabilities& capabilities,
                      absl::string_view backend, int rank, int size);

// Does what `operation` says, on this rank. Returns the sender's rank for recv, else 0.
absl::StatusOr<int> Dispatch(const Operation& operation, const CallContext& context,
                             Backend& backend, int rank);

}  // namespace syncline

#endif  // SYNCLINE_CORE_GROUP_OPERATION_H_
