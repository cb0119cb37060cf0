// A tour of process groups in C++: reductions, sub-groups, work in the background, errors.
//   ./bazelw build //examples:tour
//   ./bazelw run //launch:run -- --standalone --nproc-per-node=3 --no-python
//   bazel-bin/examples/tour
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncline/syncline.h"

namespace {

using syncline::Tensor;

absl::Status Run() {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init({}));  // env://, as launchers set it
  syncline::ProcessGroup& group = *world->group();
  const int rank = group.rank(), size = group.size();
  auto say = [rank](const auto&... text) {
    std::cout << absl::StrCat("rank ", rank, ": ", text..., "\n") << std::flush;
  };

  // Every rank contributes its number; all get the sum, in place.
  std::vector<float> x(4, static_cast<float>(rank));
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(x)));
  say("the sum is ", x[0]);

  // Memory that the other ranks of this host read where it is, for large buffers.
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor large,
                            syncline::EmptyShared(syncline::DType::kFloat32, {1 << 20}));
  std::fill_n(large.data_as<float>(), large.numel(), static_cast<float>(rank));
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(large));
  say("the shared sum is ", large.data_as<float>()[large.numel() - 1]);

  // In the background: the inputs of all ranks are on their way while this one goes on. These
  // tensors own their memory, so that it lives for as long as the call, however this ends.
  const Tensor mine = Tensor::Zeros(syncline::DType::kFloat32, {2});
  const Tensor gathered = Tensor::Zeros(syncline::DType::kFloat32, {2 * size});
  std::fill_n(mine.data_as<float>(), mine.numel(), static_cast<float>(rank));
  SYNCLINE_ASSIGN_OR_RETURN(auto work, group.AllGatherSingleAsync(gathered, mine));
  std::vector<std::vector<int>> halves(2);
  for (int r = 0; r < size; ++r) halves[r % 2].push_back(r);
  SYNCLINE_ASSIGN_OR_RETURN(auto half, syncline::Split(group, halves));
  SYNCLINE_RETURN_IF_ERROR(work->Wait());
  std::string all;
  for (int r = 0; r < size; ++r) absl::StrAppend(&all, " ", gathered.data_as<float>()[2 * r]);
  say("gathered", all);

  // In the half of the ranks that this one belongs to.
  std::vector<int64_t> y = {rank};
  SYNCLINE_RETURN_IF_ERROR(half->AllReduce(Tensor::Of(y), syncline::ReduceOp::kMax));
  say("the largest of my half is ", y[0]);

  // A bad argument is refused before anything happens, and the group goes on.
  const absl::Status refused = group.Broadcast(Tensor::Of(x), /*root=*/size);
  if (syncline::KindOf(refused) == syncline::ErrorKind::kArgument)
    say("refused: ", refused.message());

  // Ranks that disagree all get an error that says who called what. Their group is then broken.
  std::vector<int> everybody(size);
  std::iota(everybody.begin(), everybody.end(), 0);
  SYNCLINE_ASSIGN_OR_RETURN(auto all_ranks, world->NewGroup(everybody));
  std::vector<float> z(rank == 0 ? 2 : 3);
  const absl::Status mismatch = all_ranks->AllReduce(Tensor::Of(z));
  if (syncline::KindOf(mismatch) == syncline::ErrorKind::kMismatch)
    say("mismatch: ", mismatch.message());

  SYNCLINE_RETURN_IF_ERROR(group.Barrier());  // Other groups are not affected.
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
