// Joins the job, and prints who this process is in it.
#include <cstdint>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

namespace {

absl::Status Run() {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init({}));
  std::vector<int64_t> sum = {world->rank()};
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(syncline::Tensor::Of(sum)));
  std::cout << absl::StrCat("rank ", world->rank(), " of ", world->size(), ", local ",
                            world->local_rank(), ", sum ", sum[0], ", job cpp.\n")
            << std::flush;
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
