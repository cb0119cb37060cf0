// The smallest job in C++:
//   ./bazelw build //examples:hello
//   ./bazelw run //launch:run -- --standalone --nproc-per-node=3 --no-python
//   bazel-bin/examples/hello
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/syncline.h"

namespace {

absl::Status Run() {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init({}));  // env://, as launchers set it
  std::vector<float> x(4, static_cast<float>(world->rank()));
  const syncline::Tensor tensor = syncline::Tensor::Of(x);
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(tensor));  // In place, the sum over all ranks.
  SYNCLINE_ASSIGN_OR_RETURN(auto work,
                            world->group()->AllReduceAsync(tensor, syncline::ReduceOp::kMax));
  SYNCLINE_RETURN_IF_ERROR(work->Wait());
  std::cout << absl::StrCat("rank ", world->rank(), " of ", world->size(), ": ",
                            absl::StrJoin(x, " "), "\n");
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
