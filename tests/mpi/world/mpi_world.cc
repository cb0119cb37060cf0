// A rank of world_test: mpi_world BACKEND [INIT_METHOD]. Joins, adds the ranks, and says what it
// found.
#include <cstdint>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/store.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

namespace {

absl::Status Run(int argc, char** argv) {
  syncline::WorldOptions options;
  options.backend = argv[1];
  if (argc > 2) options.init_method = argv[2];
  options.timeout = absl::Seconds(60);
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init(options));
  std::vector<int64_t> sum = {world->rank()};
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(syncline::Tensor::Of(sum)));
  std::cout << absl::StrCat("rank ", world->rank(), " of ", world->size(), ": sum ", sum[0],
                            ", store ", world->store()->address(), ".\n")
            << std::flush;
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc, argv);
  if (!status.ok()) std::cerr << absl::StrCat("failed: ", status.ToString(), "\n");
  return status.ok() ? 0 : 1;
}
