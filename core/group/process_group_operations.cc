// The operations of ProcessGroup: each describes itself as data and is run, or started.
#include <utility>

#include "core/group/derived.h"
#include "core/group/process_group_impl.h"
#include "core/group/splitting.h"
#include "syncline/process_group.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// The forms on one tensor in place of a list, which holds the ranks' parts one after another. They
// call use(collective), and go together with the forms on lists on other ranks: the same bytes
// move. `ends` says that no call on tensors of the CPU uses these once use has returned.

// What must keep the parts of `whole`. A call on a device may go on after it has returned.
group::Parts::Owner OwnerOfParts(const Tensor& whole, bool ends) {
  const bool keeps_nothing = ends && whole.device().type == DeviceType::kCpu;
  return keeps_nothing ? group::Parts::Owner::kCaller : group::Parts::Owner::kEachPart;
}

template <typename Result, typename Use>
Result GatherInParts(const Tensor& output, const Tensor& input, int size, bool ends,
                     const Use& use) {
  constexpr absl::string_view kName = "all_gather_single";
  group::Parts outputs(size, OwnerOfParts(output, ends));
  const absl::Status fits = group::SplitEqually(output, "output", input, "input", size, outputs);
  if (!fits.ok()) return Annotate(fits, kName);
  Collective collective = Collective::AllGather(outputs.list(), input);
  collective.has_equal_parts = true;
  collective.user_name = kName;
  return use(collective);
}

template <typename Result, typename Use>
Result ReduceScatterInParts(const Tensor& output, const Tensor& input, ReduceOp op, double factor,
                            int size, bool ends, const Use& use) {
  constexpr absl::string_view kName = "reduce_scatter_single";
  group::Parts inputs(size, OwnerOfParts(input, ends));
  const absl::Status fits = group::SplitEqually(input, "input", output, "output", size, inputs);
  if (!fits.ok()) return Annotate(fits, kName);
  Collective collective = Collective::ReduceScatter(output, inputs.list(), op, factor);
  collective.has_equal_parts = true;
  collective.user_name = kName;
  return use(collective);
}

// Splits count along the first dimension, one for each rank; none means equal parts.
template <typename Result, typename Use>
Result AllToAllInParts(const Tensor& output, const Tensor& input,
                       absl::Span<const int64_t> output_splits,
                       absl::Span<const int64_t> input_splits, int size, bool ends,
                       const Use& use) {
  constexpr absl::string_view kName = "all_to_all_single";
  group::Parts outputs(size, OwnerOfParts(output, ends));
  group::Parts inputs(size, OwnerOfParts(input, ends));
  absl::Status fits = group::SplitRows(output, "output", output_splits, size, outputs);
  if (fits.ok()) fits = group::SplitRows(input, "input", input_splits, size, inputs);
  if (!fits.ok()) return Annotate(fits, kName);
  Collective collective = Collective::AllToAll(outputs.list(), inputs.list());
  collective.has_equal_parts = output_splits.empty() && input_splits.empty();
  collective.user_name = kName;
  return use(collective);
}

// The plan of a derived collective, or what is wrong with its arguments, under the user's name for
// it.
absl::StatusOr<group::Plan> Named(absl::string_view name, absl::StatusOr<group::Plan> plan) {
  if (!plan.ok()) return Annotate(plan.status(), name);
  plan->collective.user_name = name;
  return plan;
}

}  // namespace

absl::Status ProcessGroup::Broadcast(const Tensor& tensor, int root, Timeout timeout) {
  return impl_->Run(Collective::Broadcast(tensor, root), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::BroadcastAsync(const Tensor& tensor, int root,
                                                       Timeout timeout) {
  return impl_->Start(Collective::Broadcast(tensor, root), timeout);
}

absl::Status ProcessGroup::AllReduce(const Tensor& tensor, ReduceOp op, Timeout timeout,
                                     double factor) {
  return impl_->Run(Collective::AllReduce(tensor, op, factor), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::AllReduceAsync(const Tensor& tensor, ReduceOp op,
                                                       Timeout timeout, double factor) {
  return impl_->Start(Collective::AllReduce(tensor, op, factor), timeout);
}

absl::Status ProcessGroup::Reduce(const Tensor& tensor, int root, ReduceOp op, Timeout timeout,
                                  double factor) {
  return impl_->Run(Collective::Reduce(tensor, op, root, factor), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::ReduceAsync(const Tensor& tensor, int root, ReduceOp op,
                                                    Timeout timeout, double factor) {
  return impl_->Start(Collective::Reduce(tensor, op, root, factor), timeout);
}

absl::Status ProcessGroup::AllGather(const Tensors& outputs, const Tensor& input, Timeout timeout) {
  return impl_->Run(Collective::AllGather(outputs, input), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::AllGatherAsync(const Tensors& outputs, const Tensor& input,
                                                       Timeout timeout) {
  return impl_->Start(Collective::AllGather(outputs, input), timeout);
}

absl::Status ProcessGroup::AllGatherSingle(const Tensor& output, const Tensor& input,
                                           Timeout timeout) {
  return GatherInParts<absl::Status>(
      output, input, impl_->options().size, impl_->ends_with_calls(),
      [&](Collective& collective) { return impl_->Run(collective, timeout).status(); });
}
ProcessGroup::StartedWork ProcessGroup::AllGatherSingleAsync(const Tensor& output,
                                                             const Tensor& input, Timeout timeout) {
  return GatherInParts<StartedWork>(
      output, input, impl_->options().size, /*ends=*/false,
      [&](Collective& collective) { return impl_->Start(std::move(collective), timeout); });
}

absl::Status ProcessGroup::Gather(const Tensors& outputs, const Tensor& input, int root,
                                  Timeout timeout) {
  return impl_->Run(Collective::Gather(outputs, input, root), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::GatherAsync(const Tensors& outputs, const Tensor& input,
                                                    int root, Timeout timeout) {
  return impl_->Start(Collective::Gather(outputs, input, root), timeout);
}

absl::Status ProcessGroup::Scatter(const Tensor& output, const Tensors& inputs, int root,
                                   Timeout timeout) {
  return impl_->Run(Collective::Scatter(output, inputs, root), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::ScatterAsync(const Tensor& output, const Tensors& inputs,
                                                     int root, Timeout timeout) {
  return impl_->Start(Collective::Scatter(output, inputs, root), timeout);
}

absl::Status ProcessGroup::ReduceScatter(const Tensor& output, const Tensors& inputs, ReduceOp op,
                                         Timeout timeout, double factor) {
  return impl_->Run(Collective::ReduceScatter(output, inputs, op, factor), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::ReduceScatterAsync(const Tensor& output,
                                                           const Tensors& inputs, ReduceOp op,
                                                           Timeout timeout, double factor) {
  return impl_->Start(Collective::ReduceScatter(output, inputs, op, factor), timeout);
}

absl::Status ProcessGroup::ReduceScatterSingle(const Tensor& output, const Tensor& input,
                                               ReduceOp op, Timeout timeout, double factor) {
  return ReduceScatterInParts<absl::Status>(
      output, input, op, factor, impl_->options().size, impl_->ends_with_calls(),
      [&](Collective& collective) { return impl_->Run(collective, timeout).status(); });
}
ProcessGroup::StartedWork ProcessGroup::ReduceScatterSingleAsync(const Tensor& output,
                                                                 const Tensor& input, ReduceOp op,
                                                                 Timeout timeout, double factor) {
  return ReduceScatterInParts<StartedWork>(
      output, input, op, factor, impl_->options().size, /*ends=*/false,
      [&](Collective& collective) { return impl_->Start(std::move(collective), timeout); });
}

absl::Status ProcessGroup::Scan(const Tensor& tensor, ReduceOp op, Timeout timeout, double factor) {
  return impl_->Run(Collective::Scan(tensor, op, factor), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::ScanAsync(const Tensor& tensor, ReduceOp op,
                                                  Timeout timeout, double factor) {
  return impl_->Start(Collective::Scan(tensor, op, factor), timeout);
}

absl::Status ProcessGroup::Exscan(const Tensor& tensor, ReduceOp op, Timeout timeout,
                                  double factor) {
  return impl_->Run(Collective::Exscan(tensor, op, factor), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::ExscanAsync(const Tensor& tensor, ReduceOp op,
                                                    Timeout timeout, double factor) {
  return impl_->Start(Collective::Exscan(tensor, op, factor), timeout);
}

absl::Status ProcessGroup::AllToAll(const Tensors& outputs, const Tensors& inputs,
                                    Timeout timeout) {
  return impl_->Run(Collective::AllToAll(outputs, inputs), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::AllToAllAsync(const Tensors& outputs, const Tensors& inputs,
                                                      Timeout timeout) {
  return impl_->Start(Collective::AllToAll(outputs, inputs), timeout);
}

absl::Status ProcessGroup::AllToAllSingle(const Tensor& output, const Tensor& input,
                                          const Splits& output_splits, const Splits& input_splits,
                                          Timeout timeout) {
  return AllToAllInParts<absl::Status>(
      output, input, output_splits, input_splits, impl_->options().size, impl_->ends_with_calls(),
      [&](Collective& collective) { return impl_->Run(collective, timeout).status(); });
}
ProcessGroup::StartedWork ProcessGroup::AllToAllSingleAsync(const Tensor& output,
                                                            const Tensor& input,
                                                            const Splits& output_splits,
                                                            const Splits& input_splits,
                                                            Timeout timeout) {
  return AllToAllInParts<StartedWork>(
      output, input, output_splits, input_splits, impl_->options().size, /*ends=*/false,
      [&](Collective& collective) { return impl_->Start(std::move(collective), timeout); });
}

absl::Status ProcessGroup::BroadcastCoalesced(const Tensors& tensors, int root, Timeout timeout) {
  return impl_->Run(
      Named("broadcast_coalesced", group::BroadcastCoalesced(tensors, root, impl_->options().rank)),
      timeout);
}
ProcessGroup::StartedWork ProcessGroup::BroadcastCoalescedAsync(const Tensors& tensors, int root,
                                                                Timeout timeout) {
  return impl_->Start(
      Named("broadcast_coalesced", group::BroadcastCoalesced(tensors, root, impl_->options().rank)),
      timeout);
}

absl::Status ProcessGroup::AllReduceCoalesced(const Tensors& tensors, ReduceOp op, Timeout timeout,
                                              double factor) {
  return impl_->Run(Named("all_reduce_coalesced", group::AllReduceCoalesced(tensors, op, factor)),
                    timeout);
}
ProcessGroup::StartedWork ProcessGroup::AllReduceCoalescedAsync(const Tensors& tensors, ReduceOp op,
                                                                Timeout timeout, double factor) {
  return impl_->Start(Named("all_reduce_coalesced", group::AllReduceCoalesced(tensors, op, factor)),
                      timeout);
}

absl::Status ProcessGroup::AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs,
                                              Timeout timeout) {
  return impl_->Run(Named("all_gather_coalesced",
                          group::AllGatherCoalesced(outputs, inputs, impl_->options().rank,
                                                    impl_->options().size)),
                    timeout);
}
ProcessGroup::StartedWork ProcessGroup::AllGatherCoalescedAsync(const Tensors& outputs,
                                                                const Tensors& inputs,
                                                                Timeout timeout) {
  return impl_->Start(Named("all_gather_coalesced",
                            group::AllGatherCoalesced(outputs, inputs, impl_->options().rank,
                                                      impl_->options().size)),
                      timeout);
}

absl::Status ProcessGroup::ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                                  ReduceOp op, Timeout timeout, double factor) {
  return impl_->Run(
      Named("reduce_scatter_coalesced",
            group::ReduceScatterCoalesced(outputs, inputs, op, factor, impl_->options().rank,
                                          impl_->options().size)),
      timeout);
}
ProcessGroup::StartedWork ProcessGroup::ReduceScatterCoalescedAsync(const Tensors& outputs,
                                                                    const Tensors& inputs,
                                                                    ReduceOp op, Timeout timeout,
                                                                    double factor) {
  return impl_->Start(
      Named("reduce_scatter_coalesced",
            group::ReduceScatterCoalesced(outputs, inputs, op, factor, impl_->options().rank,
                                          impl_->options().size)),
      timeout);
}

absl::Status ProcessGroup::BroadcastMulti(const Tensors& tensors, int root, int64_t root_tensor,
                                          Timeout timeout) {
  return impl_->Run(Named("broadcast_multi",
                          group::BroadcastMulti(tensors, root, root_tensor, impl_->options().rank)),
                    timeout);
}
ProcessGroup::StartedWork ProcessGroup::BroadcastMultiAsync(const Tensors& tensors, int root,
                                                            int64_t root_tensor, Timeout timeout) {
  return impl_->Start(Named("broadcast_multi", group::BroadcastMulti(tensors, root, root_tensor,
                                                                     impl_->options().rank)),
                      timeout);
}

absl::Status ProcessGroup::AllReduceMulti(const Tensors& tensors, ReduceOp op, Timeout timeout,
                                          double factor) {
  return impl_->Run(Named("all_reduce_multi", group::AllReduceMulti(tensors, op, factor)), timeout);
}
ProcessGroup::StartedWork ProcessGroup::AllReduceMultiAsync(const Tensors& tensors, ReduceOp op,
                                                            Timeout timeout, double factor) {
  return impl_->Start(Named("all_reduce_multi", group::AllReduceMulti(tensors, op, factor)),
                      timeout);
}

absl::Status ProcessGroup::ReduceMulti(const Tensors& tensors, int root, ReduceOp op,
                                       int64_t root_tensor, Timeout timeout, double factor) {
  return impl_->Run(Named("reduce_multi", group::ReduceMulti(tensors, root, op, root_tensor, factor,
                                                             impl_->options().rank)),
                    timeout);
}
ProcessGroup::StartedWork ProcessGroup::ReduceMultiAsync(const Tensors& tensors, int root,
                                                         ReduceOp op, int64_t root_tensor,
                                                         Timeout timeout, double factor) {
  return impl_->Start(Named("reduce_multi", group::ReduceMulti(tensors, root, op, root_tensor,
                                                               factor, impl_->options().rank)),
                      timeout);
}

absl::Status ProcessGroup::AllGatherMulti(const Tensors& outputs, const Tensors& inputs,
                                          Timeout timeout) {
  return impl_->Run(
      Named("all_gather_multi",
            group::AllGatherMulti(outputs, inputs, impl_->options().rank, impl_->options().size)),
      timeout);
}
ProcessGroup::StartedWork ProcessGroup::AllGatherMultiAsync(const Tensors& outputs,
                                                            const Tensors& inputs,
                                                            Timeout timeout) {
  return impl_->Start(
      Named("all_gather_multi",
            group::AllGatherMulti(outputs, inputs, impl_->options().rank, impl_->options().size)),
      timeout);
}

absl::Status ProcessGroup::ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs,
                                              ReduceOp op, Timeout timeout, double factor) {
  return impl_->Run(Named("reduce_scatter_multi",
                          group::ReduceScatterMulti(outputs, inputs, op, factor,
                                                    impl_->options().rank, impl_->options().size)),
                    timeout);
}
ProcessGroup::StartedWork ProcessGroup::ReduceScatterMultiAsync(const Tensors& outputs,
                                                                const Tensors& inputs, ReduceOp op,
                                                                Timeout timeout, double factor) {
  return impl_->Start(
      Named("reduce_scatter_multi",
            group::ReduceScatterMulti(outputs, inputs, op, factor, impl_->options().rank,
                                      impl_->options().size)),
      timeout);
}

absl::Status ProcessGroup::Barrier(Timeout timeout) {
  return impl_->Run(Collective::Barrier(), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::BarrierAsync(Timeout timeout) {
  return impl_->Start(Collective::Barrier(), timeout);
}

absl::Status ProcessGroup::Send(const Tensor& tensor, int dst, int64_t tag, Timeout timeout) {
  return impl_->Run(Collective::Send(tensor, dst, tag), timeout).status();
}
ProcessGroup::StartedWork ProcessGroup::SendAsync(const Tensor& tensor, int dst, int64_t tag,
                                                  Timeout timeout) {
  return impl_->Start(Collective::Send(tensor, dst, tag), timeout);
}

absl::StatusOr<int> ProcessGroup::Recv(const Tensor& tensor, int src, int64_t tag,
                                       Timeout timeout) {
  auto source = impl_->Run(Collective::Recv(tensor, src, tag), timeout);
  if (!source.ok()) return source.status();
  return *source;
}
ProcessGroup::StartedWork ProcessGroup::RecvAsync(const Tensor& tensor, int src, int64_t tag,
                                                  Timeout timeout) {
  return impl_->Start(Collective::Recv(tensor, src, tag), timeout);
}

}  // namespace syncline
