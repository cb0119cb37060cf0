// What core/join needs of MPI, for jobs whose ranks meet over it: join::MpiProcesses.
#include "core/join/mpi_processes.h"

#include <sched.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/mpi/leftovers.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/mpi_runtime.h"
#include "backends/mpi/thresholds.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/mpi_comm.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

// Tests the request until it is complete. MPI does not tell who is missing.
absl::Status Await(MpiRuntime& runtime, absl::string_view what, MpiHandle& request,
                   const Deadline& deadline) {
  const MpiApi& api = runtime.api();
  const absl::Time began = absl::Now();
  while (true) {
    for (int i = 0; i < kTestsBetweenChecks; ++i) {
      int done = 0;
      const int error = api.test(&request, &done, nullptr);
      if (error != kMpiSuccess || done != 0) return runtime.ToStatus(error, what);
      if (absl::Now() - began > kYieldTime) {
        absl::SleepFor(kSleepTime);
      } else {
        sched_yield();
      }
    }
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    if (!deadline.Expired()) continue;
    return TimeoutError(absl::StrCat(
        what, " has not completed within ", absl::FormatDuration(deadline.timeout()), "; ",
        runtime.library().Describe(),
        ": the processes of the communicator have not all come to meet: does each of them join, ",
        "all with the same init_method or communicator, and is none dead? MPI does not tell which ",
        "one is missing"));
  }
}

// The duplicate of a communicator that an attempt to meet could not wait for. The next attempt
// does: the calls of MPI_Comm_idup of all processes match in their order.
class PendingDuplicates {
 public:
  struct Duplicate {
    MpiHandle comm = 0;
    MpiHandle request = 0;
  };

  static PendingDuplicates& Instance() {
    static PendingDuplicates* const instance = new PendingDuplicates;
    return *instance;
  }

  // Null if there is none for `parent`.
  std::unique_ptr<Duplicate> Take(MpiHandle parent) {
    absl::MutexLock lock(&mutex_);
    const auto node = pending_.extract(parent);
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  void Put(MpiHandle parent, std::unique_ptr<Duplicate> duplicate) {
    absl::MutexLock lock(&mutex_);
    pending_.emplace(parent, std::move(duplicate));
  }

 private:
  absl::Mutex mutex_;
  std::map<MpiHandle, std::unique_ptr<Duplicate>> pending_ ABSL_GUARDED_BY(mutex_);
};

// A communicator of the processes of `parent`, so that what a deadline ends does not get into the
// way of the program's own messages.
absl::StatusOr<MpiHandle> Duplicate(MpiRuntime& runtime, MpiHandle parent,
                                    const Deadline& deadline) {
  const MpiApi& api = runtime.api();
  PendingDuplicates& pending = PendingDuplicates::Instance();
  auto duplicate = pending.Take(parent);
  if (duplicate == nullptr) {
    duplicate = std::make_unique<PendingDuplicates::Duplicate>();
    SYNCLINE_RETURN_IF_ERROR(runtime.ToStatus(
        api.comm_idup(parent, &duplicate->comm, &duplicate->request), "MPI_Comm_idup"));
    runtime.BeginPending();
  }
  absl::Status status = Await(runtime, "MPI_Comm_idup", duplicate->request, deadline);
  if (duplicate->request != api.request_null()) {
    pending.Put(parent, std::move(duplicate));
    return status;
  }
  runtime.EndPending();
  SYNCLINE_RETURN_IF_ERROR(status);
  SYNCLINE_RETURN_IF_ERROR(
      runtime.ToStatus(api.comm_return_errors(duplicate->comm), "MPI_Comm_set_errhandler"));
  return duplicate->comm;
}

// The processes of a communicator.
class CommunicatorProcesses final : public join::MpiProcesses {
 public:
  static absl::StatusOr<std::shared_ptr<join::MpiProcesses>> Create(
      const std::optional<MpiComm>& given, const Deadline& deadline) {
    SYNCLINE_ASSIGN_OR_RETURN(MpiRuntime* const runtime, MpiRuntime::Get(deadline));
    const MpiApi& api = runtime->api();
    if (given.has_value() && given->family() != api.family) {
      return ArgumentError(absl::StrCat(
          "the communicator is one of ", given->family(), ", and this process uses ",
          runtime->library().Describe(), ", of the family ", api.family,
          ": a process can use one MPI. Set SYNCLINE_MPI_LIBRARY to the library that has made the ",
          "communicator"));
    }
    const MpiHandle comm = given.has_value() ? given->handle() : api.comm_world();
    if (comm == api.comm_null()) {
      return ArgumentError("the communicator is MPI_COMM_NULL: this process is not part of it");
    }
    int rank = 0;
    int size = 1;
    int is_inter = 0;
    int error = api.comm_test_inter(comm, &is_inter);
    if (error == kMpiSuccess) error = api.comm_rank(comm, &rank);
    if (error == kMpiSuccess) error = api.comm_size(comm, &size);
    SYNCLINE_RETURN_IF_ERROR(runtime->ToStatus(error, "MPI_Comm_size"));
    if (is_inter != 0) {
      return ArgumentError(
          "the communicator is an intercommunicator, whose two groups have ranks of their own: "
          "merge them by MPI_Intercomm_merge");
    }
    SYNCLINE_ASSIGN_OR_RETURN(const MpiHandle copy, Duplicate(*runtime, comm, deadline));
    return std::make_shared<CommunicatorProcesses>(*runtime, copy, rank, size);
  }

  CommunicatorProcesses(MpiRuntime& runtime, MpiHandle comm, int rank, int size)
      : runtime_(runtime), comm_(comm), rank_(rank), size_(size) {}

  // A communicator in which a call has failed may still be in use.
  ~CommunicatorProcesses() override {
    if (!has_failed_) runtime_.api().comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return runtime_.library().Describe(); }

  absl::StatusOr<std::string> Allgather(absl::string_view part, const Deadline& deadline) override {
    struct Memory {
      std::string sent, received;
    };
    const auto memory = std::make_shared<Memory>();
    memory->sent = std::string(part);
    memory->received.resize(part.size() * size_);
    SYNCLINE_RETURN_IF_ERROR(
        Run("MPI_Iallgather", deadline, memory, [&](const MpiApi& api, MpiHandle* request) {
          return api.iallgather(memory->sent.data(), memory->sent.size(), memory->received.data(),
                                comm_, request);
        }));
    return std::move(memory->received);
  }

  absl::Status Bcast(std::string& data, const Deadline& deadline) override {
    const auto copy = std::make_shared<std::string>(data);
    SYNCLINE_RETURN_IF_ERROR(
        Run("MPI_Ibcast", deadline, copy, [&](const MpiApi& api, MpiHandle* request) {
          return api.ibcast(copy->data(), copy->size(), 0, comm_, request);
        }));
    data = std::move(*copy);
    return absl::OkStatus();
  }

 private:
  // Waits for the collective that `begin` begins, which uses `memory`.
  absl::Status Run(absl::string_view what, const Deadline& deadline, std::shared_ptr<void> memory,
                   absl::FunctionRef<int(const MpiApi& api, MpiHandle* request)> begin) {
    if (has_failed_) return BackendError("an earlier call over this communicator has failed");
    has_failed_ = true;
    const MpiApi& api = runtime_.api();
    MpiHandle request = api.request_null();
    SYNCLINE_RETURN_IF_ERROR(runtime_.ToStatus(begin(api, &request), what));
    const absl::Status status = Await(runtime_, what, request, deadline);
    has_failed_ = !status.ok();
    if (request != api.request_null()) LeaveBehind(request, std::move(memory));
    return status;
  }

  // Keeps what MPI still uses. No cancelling: MPI cannot cancel a collective.
  void LeaveBehind(MpiHandle request, std::shared_ptr<void> memory) {
    runtime_.BeginPending();
    FreeLater([&runtime = runtime_, request, memory = std::move(memory)](Sweep) mutable {
      int done = 0;
      runtime.api().test(&request, &done, nullptr);
      if (done != 0) runtime.EndPending();
      return done != 0;
    });
  }

  MpiRuntime& runtime_;
  MpiHandle comm_;
  const int rank_, size_;
  bool has_failed_ = false;
};

const join::MpiProcessesRegistry::Registration kProcesses("mpi", &CommunicatorProcesses::Create);

}  // namespace
}  // namespace syncline::mpi
