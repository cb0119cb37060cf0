// Sums each rank's number over all ranks.
#include <iostream>
#include <vector>

#include "syncline/syncline.h"

namespace {

absl::Status Run() {
  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init({}));
  std::vector<float> x = {static_cast<float>(world->rank())};
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(syncline::Tensor::Of(x)));
  std::cout << "rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                   ": " + std::to_string(static_cast<int>(x[0])) + "\n";
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
