// A plug-in that uses MPI and links no MPI library: it takes MPI's symbols from the library that
// the process has loaded before. It is built once for each ABI.

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                      \
    }                                                                                \
  } while (false)

// Sums, and takes 1000 off where the library names another datatype than the caller did.
void Add(void* in, void* inout, int* count, MPI_Datatype* type) {
  const auto* from = static_cast<const int64_t*>(in);
  auto* to = static_cast<int64_t*>(inout);
  for (int i = 0; i < *count; ++i) to[i] += from[i] - (*type == MPI_INT64_T ? 0 : 1000);
}

int CheckAllReduce(MPI_Comm comm, int size) {
  std::vector<int64_t> in(1000, 3), out(1000);
  MPI_Request request;
  CHECK(MPI_Iallreduce(in.data(), out.data(), 1000, MPI_INT64_T, MPI_SUM, comm, &request) ==
        MPI_SUCCESS);
  for (int done = 0; !done;) {
    CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS);
  }
  CHECK(request == MPI_REQUEST_NULL);
  CHECK(std::count(out.begin(), out.end(), 3 * size) == 1000);
  return 0;
}

int CheckUserOp(MPI_Comm comm, int size) {
  MPI_Op op;
  CHECK(MPI_Op_create(&Add, /*commute=*/1, &op) == MPI_SUCCESS);
  std::vector<int64_t> values(100, 2);
  CHECK(MPI_Allreduce(MPI_IN_PLACE, values.data(), 100, MPI_INT64_T, op, comm) == MPI_SUCCESS);
  CHECK(std::count(values.begin(), values.end(), 2 * size) == 100);
  CHECK(MPI_Op_free(&op) == MPI_SUCCESS && op == MPI_OP_NULL);
  return 0;
}

// Around the ring, so that the status has another rank's number.
int CheckStatus(MPI_Comm comm, int rank, int size) {
  int from = -1;
  MPI_Status status;
  CHECK(MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 17, &from, 1, MPI_INT, MPI_ANY_SOURCE,
                     MPI_ANY_TAG, comm, &status) == MPI_SUCCESS);
  int count = -1;
  CHECK(MPI_Get_count(&status, MPI_INT, &count) == MPI_SUCCESS && count == 1);
  CHECK(status.MPI_TAG == 17 && status.MPI_SOURCE == (rank + size - 1) % size);
  CHECK(from == status.MPI_SOURCE);
  return 0;
}

// A communicator whose ranks are in the opposite order.
int CheckGroup(int rank, int size) {
  std::vector<int> ranks;
  for (int i = size - 1; i >= 0; --i) ranks.push_back(i);
  MPI_Group world, reversed;
  CHECK(MPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS);
  CHECK(MPI_Group_incl(world, size, ranks.data(), &reversed) == MPI_SUCCESS);
  MPI_Comm comm = MPI_COMM_NULL;
  CHECK(MPI_Comm_create_group(MPI_COMM_WORLD, reversed, /*tag=*/5, &comm) == MPI_SUCCESS);
  int own = -1;
  CHECK(MPI_Comm_rank(comm, &own) == MPI_SUCCESS && own == size - 1 - rank);
  CHECK(CheckAllReduce(comm, size) == 0);
  CHECK(CheckUserOp(comm, size) == 0);
  CHECK(CheckStatus(comm, own, size) == 0);
  CHECK(MPI_Comm_free(&comm) == MPI_SUCCESS && comm == MPI_COMM_NULL);
  CHECK(MPI_Group_free(&reversed) == MPI_SUCCESS && MPI_Group_free(&world) == MPI_SUCCESS);
  return 0;
}

}  // namespace

// Does all this in a world of `size` ranks, and returns 0 if everything is right.
extern "C" int Probe(int size) {
  int level = -1, rank = -1, actual = -1;
  CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS);
  CHECK(level == MPI_THREAD_MULTIPLE);
  CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS && rank >= 0 && rank < size);
  CHECK(MPI_Comm_size(MPI_COMM_WORLD, &actual) == MPI_SUCCESS && actual == size);
  CHECK(CheckGroup(rank, size) == 0);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  CHECK(MPI_Get_library_version(version, &length) == MPI_SUCCESS);
  *std::find(version, version + length, '\n') = 0;
  CHECK(MPI_Finalize() == MPI_SUCCESS);
  std::printf("rank %d of %d: %s\n", rank, size, version);
  return 0;
}
