// A rank of a job in which another rank dies: what the survivors see.
//
//   mpirun --enable-recovery -n 3 mpi_survivor OPERATION ELEMENTS VICTIM STEP [shrink]
//
// All ranks make the call OPERATION on ELEMENTS floats again and again; VICTIM kills itself before
// its call number STEP. A survivor prints the error that it gets, and how long it took, and goes;
// with "shrink", after calls in a group of the survivors. The rank that hosts the store goes last,
// since those that look for the cause find it there.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "syncline/syncline.h"

namespace syncline {
namespace {

absl::Status Call(ProcessGroup& group, const std::string& operation, const Tensor& tensor) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  if (operation == "all_reduce") return group.AllReduce(tensor);
  if (operation == "broadcast") return group.Broadcast(tensor, 0);
  if (operation == "barrier") return group.Barrier();
  if (operation == "ring") {
    SYNCLINE_ASSIGN_OR_RETURN(const auto sent, group.SendAsync(tensor, next));
    SYNCLINE_RETURN_IF_ERROR(group.Recv(tensor, previous).status());
    return sent->Wait(absl::Seconds(30));
  }
  return ArgumentError("no operation " + operation);
}

// The survivors go on, over MPI, without `victim`.
absl::Status GoOn(ProcessGroup& group, int victim) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto survivors, Shrink(group, {victim}));
  for (int64_t i = 0; i < 100; ++i) {
    std::vector<int64_t> sum = {i};
    SYNCLINE_RETURN_IF_ERROR(survivors->AllReduce(Tensor::Of(sum)));
    if (sum[0] != i * survivors->size()) return BackendError("the sum is wrong");
  }
  std::printf("rank %d of %d goes on\n", survivors->rank(), survivors->size());
  std::fflush(stdout);
  return survivors->Barrier();
}

// Waits, on the rank that hosts the store, until all survivors have their errors.
void AwaitOthers(World& world, int victim) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != victim) keys.push_back(absl::StrCat("survivor has reported/", rank));
  }
  const std::shared_ptr<Store> store = world.store();
  store->Set(absl::StrCat("survivor has reported/", world.rank()), "").IgnoreError();
  if (store->is_hosted_here()) store->Wait(keys, absl::Seconds(10)).IgnoreError();
}

int Main(int argc, char** argv) {
  int64_t elements = 0;
  int victim = 0, step = 0;
  const bool shrinks = argc == 6 && std::string(argv[5]) == "shrink";
  if ((argc != 5 && !shrinks) || !absl::SimpleAtoi(argv[2], &elements) ||
      !absl::SimpleAtoi(argv[3], &victim) || !absl::SimpleAtoi(argv[4], &step)) {
    std::fprintf(stderr, "usage: %s OPERATION ELEMENTS VICTIM STEP [shrink]\n", argv[0]);
    return 2;
  }
  WorldOptions options;
  options.backend = "mpi";
  options.timeout = absl::Seconds(30);
  const auto world = World::Init(options);
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().ToString().c_str());
    return 1;
  }
  std::vector<float> values(elements);
  absl::Time began;
  absl::Status status;
  for (int i = 0; status.ok() && i < step + 1000; ++i) {
    if (i == step && (*world)->rank() == victim) raise(SIGKILL);
    began = absl::Now();
    status = Call(*(*world)->group(), argv[1], Tensor::Of(values));
  }
  std::printf("rank %d: after %s: ranks %s: %s\n", (*world)->rank(),
              absl::FormatDuration(absl::Now() - began).c_str(),
              absl::StrJoin(RanksOf(status), " ").c_str(), std::string(status.message()).c_str());
  std::fflush(stdout);
  if (status.ok()) return 1;
  AwaitOthers(**world, victim);
  const absl::Status after = shrinks ? GoOn(*(*world)->group(), victim) : absl::OkStatus();
  if (!after.ok()) std::printf("failed: %s\n", after.ToString().c_str());
  return after.ok() ? 0 : 1;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) { return syncline::Main(argc, argv); }
