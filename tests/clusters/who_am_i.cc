// Joins the job, and prints who this process is in it. The argument, if any, is the backend.
#include <cstdint>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

namespace {

using syncline::Tensor;

absl::Status Run(const std::string& backend) {
  syncline::WorldOptions options;
  options.backend = backend;
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init(options));
  syncline::ProcessGroup& group = *world->group();
  std::vector<int64_t> own = {world->rank()}, sum = own;
  std::vector<int64_t> all(world->size()), ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(sum)));
  SYNCLINE_RETURN_IF_ERROR(group.AllGatherSingle(Tensor::Of(all), Tensor::Of(own)));
  if (all != ranks) return syncline::BackendError("all_gather gave " + absl::StrJoin(all, " "));
  std::cout << absl::StrCat("rank ", world->rank(), " of ", world->size(), ", local ",
                            world->local_rank(), ", sum ", sum[0], ", job cpp.\n")
            << std::flush;
  SYNCLINE_RETURN_IF_ERROR(group.Barrier());
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "auto");
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
