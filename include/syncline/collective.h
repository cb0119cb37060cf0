// One call of one rank as data: one value from ProcessGroup to the wire. It is checked, compared
// between ranks, carried out and quoted in messages from the same fields.
#ifndef SYNCLINE_COLLECTIVE_H_
#define SYNCLINE_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/error_origin.h"
#include "syncline/op_kind.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline {

// The arguments of one call, a message between two ranks included. Made by one factory for each
// kind, below, which says what the operation does; fields that mean nothing to the kind keep their
// defaults. Borrows its tensors from the caller unless Own was called. Copies share what is owned.
//
//   Tensor gradients = ...;
//   SYNCLINE_RETURN_IF_ERROR(
//       backend.Run({Collective::AllReduce(gradients, ReduceOp::kSum)}, context).status());
struct Collective {
  // Copies `root`'s tensor over every other rank's.
  static Collective Broadcast(const Tensor& tensor, int root) {
    return Collective(OpKind::kBroadcast, &tensor, root);
  }

  // Replaces `tensor` on every rank by the elementwise reduction over all ranks. Here and below,
  // `factor` goes with premul_sum only: this rank's elements are multiplied by it first.
  static Collective AllReduce(const Tensor& tensor, ReduceOp op, double factor = 1.0) {
    return Collective(OpKind::kAllReduce, &tensor, kNoPeer, op, factor);
  }

  // The same on `root` only; the other ranks' tensors keep their elements.
  static Collective Reduce(const Tensor& tensor, ReduceOp op, int root, double factor = 1.0) {
    return Collective(OpKind::kReduce, &tensor, root, op, factor);
  }

  // Copies rank r's `input` to outputs[r] on every rank. outputs[r] has the size of rank r's input,
  // which may differ from rank to rank. `input` may be outputs[rank] itself.
  static Collective AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
    Collective collective(OpKind::kAllGather, &input);
    collective.outputs = outputs;
    return collective;
  }

  // The same on `root` only; `outputs` is empty elsewhere. All inputs have one size.
  static Collective Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root) {
    Collective collective(OpKind::kGather, &input, root);
    collective.outputs = outputs;
    return collective;
  }

  // Copies inputs[r] of `root` to rank r's `output`; `inputs` is empty elsewhere. All have one
  // size. On root, `output` may be inputs[root] itself.
  static Collective Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root) {
    Collective collective(OpKind::kScatter, &output, root);
    collective.inputs = inputs;
    return collective;
  }

  // Reduces inputs[r] of all ranks to rank r's `output`. The sizes of inputs[r] may differ with r,
  // not with the rank that passes them. Inputs keep their elements; `output` may be inputs[rank].
  static Collective ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                  ReduceOp op, double factor = 1.0) {
    Collective collective(OpKind::kReduceScatter, &output, kNoPeer, op, factor);
    collective.inputs = inputs;
    return collective;
  }

  // Replaces `tensor` on rank r by the elementwise reduction over the ranks 0 to r, in that order.
  // Not avg, whose divisor would differ from rank to rank.
  static Collective Scan(const Tensor& tensor, ReduceOp op, double factor = 1.0) {
    return Collective(OpKind::kScan, &tensor, kNoPeer, op, factor);
  }

  // The same over the ranks 0 to r - 1; the tensor of rank 0 keeps its elements.
  static Collective Exscan(const Tensor& tensor, ReduceOp op, double factor = 1.0) {
    return Collective(OpKind::kExscan, &tensor, kNoPeer, op, factor);
  }

  // Copies inputs[r] to outputs[rank] of rank r. inputs[r] and what rank r has for it in its
  // outputs have one size, each pair its own.
  static Collective AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs) {
    Collective collective(OpKind::kAllToAll);
    collective.outputs = outputs;
    collective.inputs = inputs;
    return collective;
  }

  // Returns once every rank has called it.
  static Collective Barrier() { return Collective(OpKind::kBarrier); }

  // Sends to rank `dst`, in order for each (pair, tag). It may be done before the peer has
  // received.
  static Collective Send(const Tensor& tensor, int dst, int64_t tag = 0) {
    Collective collective(OpKind::kSend, &tensor, dst);
    collective.tag = tag;
    return collective;
  }

  // Receives from rank `src` or kAnySource; its outcome is the rank that sent. A message goes to
  // the receive that was called first, of those from its sender and those from any source.
  static Collective Recv(const Tensor& tensor, int src, int64_t tag = 0) {
    Collective collective(OpKind::kRecv, &tensor, src);
    collective.tag = tag;
    return collective;
  }

  // For code that fills in the fields of any kind, such as a test of all of them.
  explicit Collective(OpKind kind) : kind(kind) {}

  static constexpr int kNoPeer = -1;

  OpKind kind;
  ReduceOp reduce_op = ReduceOp::kSum;  // Of kinds that reduce.
  double factor = 1.0;                  // premul_sum: this rank's elements are multiplied by it.
  // The root, or the other rank of send and recv, which may be kAnySource; and the tag of those
  // two. As the caller gave them: the tag fits into an int once CheckArguments has accepted it.
  int peer = kNoPeer;
  int64_t tag = 0;

  // The tensor of all kinds but all_to_all and barrier: of all_gather and gather the input, of
  // scatter and reduce_scatter the output.
  const Tensor* tensor = nullptr;
  absl::Span<const Tensor> outputs;  // all_gather, all_to_all; gather on the root.
  absl::Span<const Tensor> inputs;   // reduce_scatter, all_to_all; scatter on the root.
  // Whether each list is the equal parts of one contiguous tensor, in order, as the forms on one
  // tensor in place of a list pass them. The first part then tells of all of them.
  bool has_equal_parts = false;

  // What the user called, where that is not the kind: "broadcast_coalesced". A literal.
  absl::string_view user_name;
  // The user's tensors, where `tensor` and the lists are buffers that hold them packed. As many,
  // of the same types and sizes, are needed on all ranks. Null otherwise.
  std::shared_ptr<const std::vector<Tensor>> user_tensors;

  // Makes the collective hold its tensors: those that it has, or others. Pointers to those that it
  // held before are no longer good.
  void Own();
  void OwnTensor(Tensor owned);
  void OwnOutputs(std::vector<Tensor> list);
  void OwnInputs(std::vector<Tensor> list);

  absl::string_view name() const { return user_name.empty() ? Name(kind) : user_name; }
  // Of the elements that move.
  DType dtype() const {
    const Tensor* const moved = Moved();
    return moved != nullptr ? moved->dtype() : DType::kUInt8;
  }
  DeviceType device() const {
    const Tensor* const moved = Moved();
    return moved != nullptr ? moved->device().type : DeviceType::kCpu;
  }
  Device tensor_device() const {
    const Tensor* const moved = Moved();
    return moved != nullptr ? moved->device() : Device();
  }

  // A hash of user_name and of the types and sizes of user_tensors. 0 if the call is no more than
  // its other fields tell.
  uint64_t UserHash() const;

  // The operation with this number in the group, as an ErrorOrigin names it; `rank` has called it.
  ErrorOrigin::Operation OperationAt(uint64_t sequence, int rank) const;

  // "all_reduce #1580": how messages name a call by its number in the group.
  std::string ShortName(uint64_t sequence) const;
  // "all_reduce #1580 (float32[4096] on cpu, sum)".
  std::string ToString(uint64_t sequence) const;

 private:
  // Constructors, as these are faster than the initialization of an aggregate on the way of every
  // call.
  Collective(OpKind kind, const Tensor* tensor, int peer = kNoPeer)
      : kind(kind), peer(peer), tensor(tensor) {}
  Collective(OpKind kind, const Tensor* tensor, int peer, ReduceOp op, double factor)
      : kind(kind), reduce_op(op), factor(factor), peer(peer), tensor(tensor) {}

  // A tensor with the type and device of what moves. Null if nothing does.
  const Tensor* Moved() const {
    return kind == OpKind::kAllToAll && !inputs.empty() ? inputs.data() : tensor;
  }

  // What a collective holds. One pointer, as each is some of the cost of a small call.
  struct Owned {
    std::optional<Tensor> tensor;
    std::vector<Tensor> outputs, inputs;
  };
  // Holds `next`, in place of what it holds.
  void Hold(Owned next);

  std::shared_ptr<const Owned> owned_;
};

// "float32[2], 3 x int32[4]"; shortened if there are very many.
std::string DescribeTensors(absl::Span<const Tensor> tensors);

}  // namespace syncline

#endif  // SYNCLINE_COLLECTIVE_H_
