// An MPI program that uses Syncline beside MPI: it initialises MPI, splits MPI_COMM_WORLD, and
// makes a world of each half.
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "syncline/mpi_comm.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/work.h"
#include "syncline/world.h"

namespace syncline {
namespace {

absl::Status Expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : BackendError(absl::StrCat("not so: ", what));
}

absl::Status ExpectRefused(MpiComm comm, absl::string_view why) {
  const absl::Status status = World::FromMpi(comm).status();
  return Expect(KindOf(status) == ErrorKind::kArgument && absl::StrContains(status.message(), why),
                absl::StrCat("'", why, "' is in '", status.ToString(), "'"));
}

// Syncline's ranks are those of the communicator, and both can be used in turns.
absl::Status UseBoth(MPI_Comm comm, absl::string_view backend) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  WorldOptions options;
  options.backend = std::string(backend);
  options.timeout = absl::Seconds(60);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, World::FromMpi(comm, options));
  SYNCLINE_RETURN_IF_ERROR(Expect(world->rank() == rank && world->size() == size, "MPI's ranks"));
  std::vector<int> everyone(size);
  for (int i = 0; i < size; ++i) everyone[i] = size - 1 - i;
  SYNCLINE_ASSIGN_OR_RETURN(auto group, world->NewGroup(everyone, "mpi"));
  for (int round = 0; round < 100; ++round) {
    int64_t sum = rank + round;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT64_T, MPI_SUM, comm);
    std::vector<int64_t> ours = {sum, group->rank()};
    SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(Tensor::Of(ours)));
    SYNCLINE_RETURN_IF_ERROR(group->Broadcast(Tensor::Of(ours), 0));
    const int64_t ranks = int64_t{size} * (size - 1) / 2;
    SYNCLINE_RETURN_IF_ERROR(
        Expect(ours[0] == size * (ranks + size * round) && ours[1] == ranks, "the sums"));
  }
  group->Close();
  world->Close();
  return absl::OkStatus();
}

absl::Status ExpectError(const absl::Status& status, ErrorKind kind, absl::string_view text) {
  return Expect(KindOf(status) == kind && absl::StrContains(status.message(), text),
                absl::StrCat("an error with '", text, "' is '", status.ToString(), "'"));
}

// Of two processes the second comes only when the attempt of the first has ended at its deadline.
absl::Status MeetLate(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  int ended = 0;
  if (rank == 0) {
    WorldOptions options;
    options.timeout = absl::Milliseconds(300);
    for (int attempt = 0; attempt < 2; ++attempt) {
      SYNCLINE_RETURN_IF_ERROR(ExpectError(World::FromMpi(comm, options).status(),
                                           ErrorKind::kTimeout, "have not all come to meet"));
    }
    MPI_Send(&ended, 1, MPI_INT, 1, 0, comm);
  } else {
    MPI_Recv(&ended, 1, MPI_INT, 0, 0, comm, MPI_STATUS_IGNORE);
  }
  return UseBoth(comm, "mpi");
}

// What ranks do not agree on is an error on all of them, and none waits for its deadline.
absl::Status Disagree(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  WorldOptions options;
  options.timeout = absl::Minutes(10);
  options.backend = rank == 0 ? "auto" : "mpi";
  SYNCLINE_RETURN_IF_ERROR(ExpectError(World::FromMpi(comm, options).status(), ErrorKind::kMismatch,
                                       "joins with backend"));
  char path[] = "/tmp/syncline_secret_XXXXXX";
  const int file = mkstemp(path);
  const bool is_written = write(file, path, sizeof(path)) == sizeof(path);
  close(file);
  if (rank == 1) setenv("SYNCLINE_SECRET_FILE", path, 1);
  const absl::Status status = World::FromMpi(comm).status();
  if (rank == 1) unsetenv("SYNCLINE_SECRET_FILE");
  unlink(path);
  SYNCLINE_RETURN_IF_ERROR(Expect(is_written, "a secret can be written"));
  return ExpectError(status, ErrorKind::kArgument, "different secrets");
}

// A group that is open when MPI is finalised, with a receive under way.
struct OpenGroup {
  std::shared_ptr<World> world;
  std::vector<float> received = std::vector<float>(4);
  std::shared_ptr<Work> receive;
};

absl::StatusOr<OpenGroup> LeaveOpen() {
  OpenGroup open;
  WorldOptions options;
  options.backend = "mpi";
  SYNCLINE_ASSIGN_OR_RETURN(open.world, World::FromMpi(MPI_COMM_WORLD, options));
  SYNCLINE_ASSIGN_OR_RETURN(open.receive,
                            open.world->group()->RecvAsync(Tensor::Of(open.received), kAnySource));
  return open;
}

// Once MPI is finalised, whoever calls it is ended by it.
absl::Status UseFinalized(OpenGroup& open) {
  const absl::string_view why = "MPI_Finalize was called";
  SYNCLINE_RETURN_IF_ERROR(ExpectError(open.receive->Wait(), ErrorKind::kBackend, why));
  SYNCLINE_RETURN_IF_ERROR(ExpectError(open.world->group()->Barrier(), ErrorKind::kBackend, why));
  open.world->Close();
  open.world = nullptr;
  return ExpectError(World::FromMpi(MPI_COMM_WORLD).status(), ErrorKind::kBackend, "finalised");
}

absl::Status Run() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // In the other order, so that ranks differ from MPI_COMM_WORLD's.
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  SYNCLINE_RETURN_IF_ERROR(UseBoth(half, "auto"));
  SYNCLINE_RETURN_IF_ERROR(UseBoth(half, "mpi"));
  SYNCLINE_RETURN_IF_ERROR(UseBoth(MPI_COMM_WORLD, "mpi"));
  SYNCLINE_RETURN_IF_ERROR(UseBoth(MPI_COMM_SELF, "mpi"));

  SYNCLINE_RETURN_IF_ERROR(ExpectRefused(MPI_COMM_NULL, "MPI_COMM_NULL"));
  MPI_Comm halves;
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 == 0 ? 3 : 2, 1, &halves);
  SYNCLINE_RETURN_IF_ERROR(ExpectRefused(halves, "MPI_Intercomm_merge"));
  const bool is_mpich = MpiComm(MPI_COMM_WORLD).family() == "MPICH";
  const absl::string_view other = is_mpich ? "Open MPI" : "MPICH";
  SYNCLINE_RETURN_IF_ERROR(
      ExpectRefused(MpiComm(other, 1), absl::StrCat("one of ", other, ", and")));
  WorldOptions options;
  options.rank = 0;
  SYNCLINE_RETURN_IF_ERROR(Expect(
      KindOf(World::FromMpi(half, options).status()) == ErrorKind::kArgument, "a rank is refused"));
  SYNCLINE_RETURN_IF_ERROR(MeetLate(half));
  SYNCLINE_RETURN_IF_ERROR(Disagree(half));
  MPI_Comm_free(&halves);
  MPI_Comm_free(&half);
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  absl::Status status = syncline::Run();
  absl::StatusOr<syncline::OpenGroup> open = status.ok() ? syncline::LeaveOpen() : status;
  std::cout << absl::StrCat(open.ok() ? "fine" : open.status().ToString(), "\n") << std::flush;
  if (!open.ok()) MPI_Abort(MPI_COMM_WORLD, 1);
  int is_finalized = 1;  // By Syncline it may not be.
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) return 2;
  if (MPI_Finalize() != MPI_SUCCESS) return 3;
  status = syncline::UseFinalized(*open);
  std::cout << absl::StrCat(status.ok() ? "finalised" : status.ToString(), "\n") << std::flush;
  return status.ok() ? 0 : 4;
}
