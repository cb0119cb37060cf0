// What core/join needs of MPI, for jobs whose ranks meet over it: join::MpiProcesses.
#include "core/join/mpi_processes.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/mpi_runtime.h"
#include "syncline/deadline.h"
#include "syncline/mpi_comm.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

// MPI does not tell who is missing.
absl::Status Explain(absl::Status status) {
  if (KindOf(status) != ErrorKind::kTimeout) return status;
  return Annotate(status,
                  "the processes of the communicator have not all come to meet: does each of them "
                  "join, all with the same init_method or communicator, and is none dead? None can "
                  "meet over this communicator any more: end the processes, and start again");
}

// The processes of a communicator. It communicates over a duplicate, so that a call that a deadline
// ends does not get into the way of the program's own.
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
    const auto copy = std::make_shared<MpiHandle>(api.comm_null());
    SYNCLINE_RETURN_IF_ERROR(Explain(runtime->CallBlocking(
        "MPI_Comm_dup", deadline, [&api, comm, copy] { return api.comm_dup(comm, copy.get()); })));
    return std::make_shared<CommunicatorProcesses>(*runtime, *copy, rank, size);
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
    const auto sent = std::make_shared<const std::string>(part);
    const auto received = std::make_shared<std::string>(part.size() * size_, '\0');
    SYNCLINE_RETURN_IF_ERROR(
        Call("MPI_Allgather", deadline, [api = &runtime_.api(), comm = comm_, sent, received] {
          return api->allgather(sent->data(), sent->size(), received->data(), comm);
        }));
    return std::move(*received);
  }

  absl::Status Bcast(std::string& data, const Deadline& deadline) override {
    const auto copy = std::make_shared<std::string>(data);
    SYNCLINE_RETURN_IF_ERROR(
        Call("MPI_Bcast", deadline, [api = &runtime_.api(), comm = comm_, copy] {
          return api->bcast(copy->data(), copy->size(), 0, comm);
        }));
    data = std::move(*copy);
    return absl::OkStatus();
  }

 private:
  // `function` owns what it uses: at the deadline it is left behind.
  absl::Status Call(absl::string_view what, const Deadline& deadline,
                    std::function<int()> function) {
    if (has_failed_) return BackendError("an earlier call over this communicator has failed");
    absl::Status status = Explain(runtime_.CallBlocking(what, deadline, std::move(function)));
    has_failed_ = !status.ok();
    return status;
  }

  MpiRuntime& runtime_;
  MpiHandle comm_;
  const int rank_, size_;
  bool has_failed_ = false;
};

const join::MpiProcessesRegistry::Registration kProcesses("mpi", &CommunicatorProcesses::Create);

}  // namespace
}  // namespace syncline::mpi
