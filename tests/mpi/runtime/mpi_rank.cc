// A rank of mpi_runtime_test: mpi_rank SCENARIO. Prints what the test looks for, and exits with 0
// if all is well.
//
//   messages   a world of two exchanges messages
//   large      the same, one message of more than 2 GiB
//   adopt      the program has initialised MPI itself, with MPI_THREAD_MULTIPLE
//   adopt_single  the same, with MPI_THREAD_SINGLE
//   timeout    rank 1 does not initialise MPI in time
//   blocking   rank 1 does not take part in making a communicator
//   fork       uses MPI in a child
//   funneled   two threads use MPI, which one thread may call; then rank 1 leaves that stuck
//   revoke     with ULFM: rank 1 ends a receive of rank 0
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/mpi/mpi_library.h"
#include "backends/mpi/mpi_runtime.h"
#include "core/base/env.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

const Deadline& TestDeadline() {
  static const Deadline* const deadline = new Deadline(absl::Seconds(200));
  return *deadline;
}

absl::Status Expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : BackendError(absl::StrCat("not so: ", what));
}

// Tests the request until it is complete.
absl::StatusOr<MpiMessage> Await(MpiRuntime& mpi, MpiHandle request) {
  MpiMessage message{-7, -7, -7, false};
  for (int done = 0; done == 0;) {
    SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(mpi.api().test(&request, &done, &message), "MPI_Test"));
    if (done == 0 && TestDeadline().Expired()) return TimeoutError("no message has come");
  }
  SYNCLINE_RETURN_IF_ERROR(Expect(request == mpi.api().request_null(), "the request is gone"));
  return message;
}

// Each of two ranks sends `bytes` to the other and receives as many, from any source.
absl::Status Exchange(MpiRuntime& mpi, MpiHandle comm, int rank, size_t bytes, int tag) {
  std::vector<char> sent(bytes, static_cast<char>('a' + rank));
  std::vector<char> received(bytes + 1, '\0');
  MpiHandle send = 0;
  MpiHandle receive = 0;
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(
      mpi.api().irecv(received.data(), received.size(), kMpiAnySource, tag, comm, &receive),
      "MPI_Irecv"));
  SYNCLINE_RETURN_IF_ERROR(
      mpi.ToStatus(mpi.api().isend(sent.data(), bytes, 1 - rank, tag, comm, &send), "MPI_Isend"));
  SYNCLINE_ASSIGN_OR_RETURN(const MpiMessage message, Await(mpi, receive));
  SYNCLINE_RETURN_IF_ERROR(Await(mpi, send).status());
  const char expected = static_cast<char>('a' + 1 - rank);
  bool is_equal = received[bytes] == '\0';
  for (size_t i = 0; i < bytes; ++i) is_equal = is_equal && received[i] == expected;
  SYNCLINE_RETURN_IF_ERROR(Expect(is_equal, "the data"));
  return Expect(message.source == 1 - rank && message.tag == tag && !message.is_cancelled &&
                    message.bytes == static_cast<int64_t>(bytes),
                absl::StrCat("source ", message.source, ", tag ", message.tag, ", ", message.bytes,
                             " of ", bytes, " bytes"));
}

// A message that is longer than its receive is an error, and no crash.
absl::Status Truncate(MpiRuntime& mpi, MpiHandle comm, int rank) {
  const std::vector<char> sent(64);
  std::vector<char> received(8);
  MpiHandle request = 0;
  const int error = rank == 0
                        ? mpi.api().isend(sent.data(), sent.size(), 1, 3, comm, &request)
                        : mpi.api().irecv(received.data(), received.size(), 0, 3, comm, &request);
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(error, "MPI_Isend or MPI_Irecv"));
  const absl::Status status = Await(mpi, request).status();
  if (rank == 0) return status;
  std::printf("truncated: %s\n", std::string(status.message()).c_str());
  return Expect(KindOf(status) == ErrorKind::kBackend, "truncation is an error");
}

absl::Status Cancel(MpiRuntime& mpi, MpiHandle comm) {
  char byte = 0;
  MpiHandle request = 0;
  SYNCLINE_RETURN_IF_ERROR(
      mpi.ToStatus(mpi.api().irecv(&byte, 1, kMpiAnySource, 99, comm, &request), "MPI_Irecv"));
  int done = 1;
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(mpi.api().test(&request, &done, nullptr), "MPI_Test"));
  SYNCLINE_RETURN_IF_ERROR(Expect(done == 0, "the receive is pending"));
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(mpi.api().cancel(&request), "MPI_Cancel"));
  SYNCLINE_ASSIGN_OR_RETURN(const MpiMessage message, Await(mpi, request));
  return Expect(message.is_cancelled, "cancelled");
}

// The communicator of `ranks` of `comm`.
absl::StatusOr<MpiHandle> MakeGroup(MpiRuntime& mpi, MpiHandle comm, std::vector<int> ranks,
                                    const Deadline& deadline) {
  const auto made = std::make_shared<MpiHandle>(0);
  SYNCLINE_RETURN_IF_ERROR(
      mpi.CallBlocking("MPI_Comm_create_group", deadline, [api = &mpi.api(), comm, ranks, made] {
        return api->comm_create_group(comm, ranks.data(), static_cast<int>(ranks.size()), 5,
                                      made.get());
      }));
  return *made;
}

absl::Status UseWorld(MpiRuntime& mpi, bool with_large) {
  const MpiApi& api = mpi.api();
  SYNCLINE_RETURN_IF_ERROR(Expect(mpi.world_size() == 2, "a world of two"));
  const int rank = mpi.world_rank();
  // In the other order, so that ranks differ from the world's.
  SYNCLINE_ASSIGN_OR_RETURN(MpiHandle comm,
                            MakeGroup(mpi, api.comm_world(), {1, 0}, TestDeadline()));
  int group_rank = -1;
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(api.comm_rank(comm, &group_rank), "MPI_Comm_rank"));
  SYNCLINE_RETURN_IF_ERROR(Expect(group_rank == 1 - rank, "ranks in the other order"));
  const int ranks[] = {0, 1};
  int world_ranks[] = {-1, -1};
  SYNCLINE_RETURN_IF_ERROR(
      mpi.ToStatus(api.world_ranks(comm, ranks, 2, world_ranks), "MPI_Group_translate_ranks"));
  SYNCLINE_RETURN_IF_ERROR(Expect(world_ranks[0] == 1 && world_ranks[1] == 0, "world ranks"));
  int bound = 0;
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(api.tag_upper_bound(comm, &bound), "MPI_TAG_UB"));
  SYNCLINE_RETURN_IF_ERROR(Expect(bound >= 32767, "tags"));
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    SYNCLINE_RETURN_IF_ERROR(Exchange(mpi, comm, group_rank, bytes, 7));
  }
  // 2 GiB and 3 bytes.
  if (with_large) {
    SYNCLINE_RETURN_IF_ERROR(Exchange(mpi, comm, group_rank, (size_t{2} << 30) + 3, bound));
  }
  SYNCLINE_RETURN_IF_ERROR(Cancel(mpi, comm));
  SYNCLINE_RETURN_IF_ERROR(Truncate(mpi, comm, group_rank));
  std::string text(rank == 0 ? "from 0" : "nobody");
  MpiHandle request = 0;
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(
      api.ibcast(text.data(), text.size(), 0, api.comm_world(), &request), "MPI_Ibcast"));
  // Of a collective's request the status is not looked at.
  for (int done = 0; done == 0;) {
    SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(api.test(&request, &done, nullptr), "MPI_Test"));
    SYNCLINE_RETURN_IF_ERROR(Expect(!TestDeadline().Expired(), "the broadcast ends"));
  }
  SYNCLINE_RETURN_IF_ERROR(Expect(text == "from 0", "the broadcast"));
  SYNCLINE_RETURN_IF_ERROR(mpi.ToStatus(api.comm_free(&comm), "MPI_Comm_free"));
  return Expect(comm == api.comm_null(), "the communicator is gone");
}

void Describe(const MpiRuntime& mpi) {
  int is_fault_tolerant = -1;
  mpi.api().is_fault_tolerant(&is_fault_tolerant);
  std::printf("rank %d of %d: %s, %s, %s, direct=%d ours=%d ulfm=%d,%d\n", mpi.world_rank(),
              mpi.world_size(), mpi.library().version().c_str(), mpi.api().family,
              mpi.library().path().c_str(), mpi.is_direct(), mpi.is_ours(),
              mpi.api().comm_shrink != nullptr, is_fault_tolerant);
  std::fflush(stdout);
}

absl::Status Messages(bool with_large) {
  SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const mpi, MpiRuntime::Get(TestDeadline()));
  Describe(*mpi);
  const absl::Status status = UseWorld(*mpi, with_large);
  if (!status.ok()) mpi->MarkFailed();  // Operations may be in progress.
  return status;
}

// The program's own MPI, which it has loaded like a module of Python: local to itself.
absl::Status Adopt(MpiThreadLevel level) {
  void* const own =
      dlopen(base::GetEnv("TEST_OWN_MPI").value_or("").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (own == nullptr) return BackendError(dlerror());
  if (level == MpiThreadLevel::kMultiple) {
    SYNCLINE_ASSIGN_OR_RETURN(const MpiLibrary* const library, MpiLibrary::Get());
    MpiThreadLevel provided = MpiThreadLevel::kSingle;
    library->api().init_thread(&provided);
  } else {
    reinterpret_cast<int (*)(int*, char***)>(dlsym(own, "MPI_Init"))(nullptr, nullptr);
  }
  absl::Status status = Messages(false);
  if (KindOf(status) == ErrorKind::kUnsupported) {
    std::printf("refused: %s\n", std::string(status.message()).c_str());
    status = absl::OkStatus();
  }
  // Not by Syncline.
  int is_finalized = 1;
  reinterpret_cast<int (*)(int*)>(dlsym(own, "MPI_Finalized"))(&is_finalized);
  status.Update(Expect(is_finalized == 0, "still the program's"));
  reinterpret_cast<int (*)()>(dlsym(own, "MPI_Finalize"))();
  const absl::Status after = MpiRuntime::Get(TestDeadline()).status();
  status.Update(Expect(!after.ok(), "an error after MPI_Finalize"));
  return status;
}

// Rank 1 comes too late.
absl::Status InitTimeout() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (std::strcmp(rank != nullptr ? rank : std::getenv("PMI_RANK"), "1") == 0) {
    absl::SleepFor(absl::Seconds(3));
    return absl::OkStatus();
  }
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = MpiRuntime::Get(Deadline(absl::Seconds(1))).status();
    std::printf("timeout %d: %s\n", i, std::string(status.message()).c_str());
  }
  return absl::OkStatus();
}

// Rank 1 does not take part. Nobody finalises MPI then, and nobody waits.
absl::Status BlockingTimeout() {
  SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const mpi, MpiRuntime::Get(TestDeadline()));
  if (mpi->world_rank() == 0) {
    const absl::Status status =
        MakeGroup(*mpi, mpi->api().comm_world(), {0, 1}, Deadline(absl::Milliseconds(500)))
            .status();
    std::printf("gave up: %s\n", std::string(status.message()).c_str());
    SYNCLINE_RETURN_IF_ERROR(Expect(KindOf(status) == ErrorKind::kTimeout, "a timeout"));
    SYNCLINE_RETURN_IF_ERROR(Expect(mpi->has_failed(), "marked as failed"));
  } else {
    absl::SleepFor(absl::Seconds(2));
    mpi->MarkFailed();
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Fork() {
  SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const mpi, MpiRuntime::Get(TestDeadline()));
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = MpiRuntime::Get(TestDeadline()).status();
    std::exit(status.ok() ? 1 : 0);  // With the handlers of exit().
  }
  int result = -1;
  waitpid(child, &result, 0);
  SYNCLINE_RETURN_IF_ERROR(Expect(result == 0, "the child gets an error and ends"));
  SYNCLINE_RETURN_IF_ERROR(UseWorld(*mpi, false));
  SYNCLINE_RETURN_IF_ERROR(mpi->Finalize(TestDeadline()));
  return Expect(!MpiRuntime::Get(TestDeadline()).ok(), "an error after Finalize");
}

// Where one thread may call MPI, others have it call.
absl::Status Funneled() {
  SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const mpi, MpiRuntime::Get(TestDeadline()));
  Describe(*mpi);
  const MpiHandle world = mpi->api().comm_world();
  const int rank = mpi->world_rank();
  SYNCLINE_ASSIGN_OR_RETURN(const MpiHandle comm, MakeGroup(*mpi, world, {0, 1}, TestDeadline()));
  absl::Status other;
  std::thread thread([&] {
    for (int i = 0; i < 20; ++i) other.Update(Exchange(*mpi, world, rank, 100000, 1));
  });
  absl::Status own;
  for (int i = 0; i < 20; ++i) own.Update(Exchange(*mpi, comm, rank, 10, 1));
  thread.join();
  SYNCLINE_RETURN_IF_ERROR(own);
  SYNCLINE_RETURN_IF_ERROR(other);
  if (rank == 1) {
    absl::SleepFor(absl::Seconds(2));
    mpi->MarkFailed();
    return absl::OkStatus();
  }
  const Deadline deadline(absl::Milliseconds(500));
  const absl::Status stuck = MakeGroup(*mpi, world, {0, 1}, deadline).status();
  SYNCLINE_RETURN_IF_ERROR(Expect(KindOf(stuck) == ErrorKind::kTimeout, "a timeout"));
  int size = 0;
  const int error = mpi->api().comm_size(world, &size);
  std::printf("afterwards: %s\n",
              std::string(mpi->ToStatus(error, "MPI_Comm_size").message()).c_str());
  const absl::Status after = MakeGroup(*mpi, world, {0, 1}, deadline).status();
  std::printf("afterwards: %s\n", std::string(after.message()).c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// Both ranks wait for a message that nobody sends, until rank 1 revokes the communicator.
absl::Status Revoke() {
  SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const mpi, MpiRuntime::Get(TestDeadline()));
  const MpiApi& api = mpi->api();
  Describe(*mpi);
  SYNCLINE_ASSIGN_OR_RETURN(const MpiHandle comm,
                            MakeGroup(*mpi, api.comm_world(), {0, 1}, TestDeadline()));
  char byte = 0;
  MpiHandle request = 0;
  SYNCLINE_RETURN_IF_ERROR(
      mpi->ToStatus(api.irecv(&byte, 1, kMpiAnySource, 1, comm, &request), "MPI_Irecv"));
  if (mpi->world_rank() == 1) {
    SYNCLINE_RETURN_IF_ERROR(mpi->ToStatus(api.comm_revoke(comm), "MPI_Comm_revoke"));
  }
  int error = kMpiSuccess;
  int done = 0;
  while (error == kMpiSuccess && !TestDeadline().Expired()) {
    error = api.test(&request, &done, nullptr);
  }
  SYNCLINE_RETURN_IF_ERROR(
      Expect(api.is_process_failure(error) != 0 && done == 1, "the receive has ended"));
  int flag = 1;
  SYNCLINE_RETURN_IF_ERROR(mpi->CallBlocking("MPI_Comm_agree", TestDeadline(),
                                             [&] { return api.comm_agree(comm, &flag); }));
  MpiHandle rest = 0;
  SYNCLINE_RETURN_IF_ERROR(mpi->CallBlocking("MPI_Comm_shrink", TestDeadline(),
                                             [&] { return api.comm_shrink(comm, &rest); }));
  return Exchange(*mpi, rest, mpi->world_rank(), 1000, 1);
}

absl::Status Run(const std::string& scenario) {
  if (scenario == "messages") return Messages(false);
  if (scenario == "large") return Messages(true);
  if (scenario == "adopt") return Adopt(MpiThreadLevel::kMultiple);
  if (scenario == "adopt_single") return Adopt(MpiThreadLevel::kSingle);
  if (scenario == "timeout") return InitTimeout();
  if (scenario == "blocking") return BlockingTimeout();
  if (scenario == "fork") return Fork();
  if (scenario == "funneled") return Funneled();
  if (scenario == "revoke") return Revoke();
  return ArgumentError(absl::StrCat("no scenario ", scenario));
}

}  // namespace
}  // namespace syncline::mpi

int main(int argc, char** argv) {
  const absl::Status status = syncline::mpi::Run(argc == 2 ? argv[1] : "");
  if (status.ok()) return 0;
  std::printf("failed: %s\n", std::string(status.message()).c_str());
  return 1;
}
