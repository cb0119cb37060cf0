// Ranks of one MPI job on two hosts, which are network namespaces of this one.
//
//   mpi_hosts run COMMAND...   makes the hosts, and runs mpirun in the first
//   mpi_hosts rank BACKEND [VICTIM]   a rank; rank 1 moves to the second host once it has MPI, which
//                                     goes on in the memory that the two share
//
// A rank says where the store is and what the sum of the ranks is. The victim then kills itself,
// and the other rank says what it hears of that, and whether before the deadline.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/mpi/mpi_runtime.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/store.h"
#include "syncline/tensor.h"
#include "syncline/world.h"
#include "tests/support/hosts.h"

namespace syncline {
namespace {

constexpr char kSecondHost[] = "TEST_SECOND_HOST";
constexpr absl::Duration kTimeout = absl::Seconds(60);

int RunOnHosts(char** command) {
  if (!EnterNewNetwork()) {
    std::cout << "not permitted: network namespaces\n";
    return 0;
  }
  const Hosts hosts(2);
  setenv(kSecondHost, hosts.door(1).c_str(), 1);
  const pid_t launcher = fork();
  if (launcher == 0) {
    EnterHost(hosts.door(0));
    execvp(command[0], command);
    _exit(127);
  }
  int status = 0;
  waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

absl::Status Sum(ProcessGroup& group) {
  std::vector<int64_t> sum = {group.rank() + 1};
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(sum)));
  return sum[0] == 3 ? absl::OkStatus() : BackendError(absl::StrCat("the sum is ", sum[0]));
}

absl::Status Rank(const std::string& backend, int victim) {
  SYNCLINE_ASSIGN_OR_RETURN(mpi::MpiRuntime* const mpi, mpi::MpiRuntime::Get(Deadline(kTimeout)));
  if (mpi->world_rank() == 1) EnterHost(getenv(kSecondHost));
  WorldOptions options;
  options.backend = backend;
  options.init_method = "mpi://";
  options.timeout = kTimeout;
  SYNCLINE_ASSIGN_OR_RETURN(const auto world, World::Init(options));
  SYNCLINE_RETURN_IF_ERROR(Sum(*world->group()));
  SYNCLINE_ASSIGN_OR_RETURN(const auto group, world->NewGroup({0, 1}, backend));
  SYNCLINE_RETURN_IF_ERROR(Sum(*group));
  std::cout << absl::StrCat("rank ", world->rank(), ": store ", world->store()->address(), ".\n")
            << std::flush;
  if (victim >= 0) {
    if (world->rank() == victim) raise(SIGKILL);
    const absl::Time began = absl::Now();
    const absl::Status status = Sum(*group);
    const bool is_late = absl::Now() - began > kTimeout / 2;
    std::cout << absl::StrCat("heard ", is_late ? "late" : "in time", " of ",
                              absl::StrJoin(RanksOf(status), " "), ": ", status.message(), "\n")
              << std::flush;
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(group->Barrier());
  group->Close();
  world->Close();
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (const auto keeper = syncline::WorkAsHost(argc, argv)) return *keeper;
  if (argc > 2 && std::string(argv[1]) == "run") return syncline::RunOnHosts(argv + 2);
  const absl::Status status = syncline::Rank(argv[2], argc > 3 ? std::atoi(argv[3]) : -1);
  if (!status.ok()) std::cout << absl::StrCat("failed: ", status.ToString(), "\n") << std::flush;
  return status.ok() ? 0 : 1;
}
