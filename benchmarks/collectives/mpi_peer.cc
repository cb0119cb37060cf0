// Open MPI or MPICH, whichever it is linked with, through the C API. The rank is the one that the
// launcher gives. --variant=nonblocking makes each call by its MPI_I... form and MPI_Test, as
// whoever needs a deadline has to.
#include <mpi.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "benchmarks/collectives/harness.h"

namespace syncline::benchmarks {
namespace {

const MPI_Comm kWorld = MPI_COMM_WORLD;
const MPI_Datatype kFloat = MPI_FLOAT;

absl::Status Ok(int code) {
  return code == MPI_SUCCESS ? absl::OkStatus()
                             : absl::InternalError(absl::StrCat("MPI error ", code));
}

#if defined(OPEN_MPI)
// The value of one of Open MPI's settings by name: "cma", "1".
std::string Setting(const std::string& name) {
  int index = 0, count = 0, provided = 0, value = 0;
  MPI_T_cvar_handle handle;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  std::string text = "unknown";
  if (MPI_T_cvar_get_index(name.c_str(), &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    MPI_T_enum names = MPI_T_ENUM_NULL;
    MPI_Datatype type;
    int verbosity, bind, scope, name_length = 0, text_length = 0;
    MPI_T_cvar_get_info(index, nullptr, &name_length, &verbosity, &type, &names, nullptr,
                        &text_length, &bind, &scope);
    MPI_T_cvar_read(handle, &value);
    text = absl::StrCat(value);
    int items = 0, length = 0;
    if (names != MPI_T_ENUM_NULL &&
        MPI_T_enum_get_info(names, &items, nullptr, &length) == MPI_SUCCESS) {
      for (int i = 0; i < items; ++i) {
        char item[64];
        int item_value = 0, item_length = sizeof(item);
        MPI_T_enum_get_item(names, i, &item_value, item, &item_length);
        if (item_value == value) text = item;
      }
    }
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return text;
}

std::string Settings() {
  const char* const pml = std::getenv("OMPI_MCA_pml");  // What carries messages.
  if (pml != nullptr && std::string(pml) == "ucx") {
    return absl::StrCat("; pml=ucx, mpi_yield_when_idle=", Setting("mpi_yield_when_idle"));
  }
  return absl::StrCat(
      "; btl_vader_single_copy_mechanism=", Setting("btl_vader_single_copy_mechanism"),
      ", mpi_yield_when_idle=", Setting("mpi_yield_when_idle"));
}
#else
std::string Settings() { return ""; }
#endif

// Makes a call that has not blocked complete, by tests.
absl::Status Tested(int code, MPI_Request request) {
  for (int done = 0; code == MPI_SUCCESS && done == 0;) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  return Ok(code);
}

// The calls of MpiSystem in their nonblocking form.
class NonblockingCalls {
 public:
  static System::Function Prepare(const Call& call, int rank) {
    float *const in = call.input, *const out = call.output;
    const int count = static_cast<int>(call.count), part = static_cast<int>(call.part);
    const void* const own = rank == 0 ? MPI_IN_PLACE : in;
    switch (call.operation) {
      case Operation::kAllReduce:
        return Start([=](MPI_Request* request) {
          return MPI_Iallreduce(MPI_IN_PLACE, out, count, kFloat, MPI_SUM, kWorld, request);
        });
      case Operation::kBroadcast:
        return Start([=](MPI_Request* request) {
          return MPI_Ibcast(out, count, kFloat, 0, kWorld, request);
        });
      case Operation::kReduce:
        return Start([=](MPI_Request* request) {
          return MPI_Ireduce(own, out, count, kFloat, MPI_SUM, 0, kWorld, request);
        });
      case Operation::kBarrier:
        return Start([](MPI_Request* request) { return MPI_Ibarrier(kWorld, request); });
      case Operation::kAllGather:
        return Start([=](MPI_Request* request) {
          return MPI_Iallgather(in, part, kFloat, out, part, kFloat, kWorld, request);
        });
      case Operation::kGather:
        return Start([=](MPI_Request* request) {
          return MPI_Igather(in, part, kFloat, out, part, kFloat, 0, kWorld, request);
        });
      case Operation::kScatter:
        return Start([=](MPI_Request* request) {
          return MPI_Iscatter(in, part, kFloat, out, part, kFloat, 0, kWorld, request);
        });
      case Operation::kReduceScatter:
        return Start([=](MPI_Request* request) {
          return MPI_Ireduce_scatter_block(in, out, part, kFloat, MPI_SUM, kWorld, request);
        });
      case Operation::kAllToAll:
        return Start([=](MPI_Request* request) {
          return MPI_Ialltoall(in, part, kFloat, out, part, kFloat, kWorld, request);
        });
      default:
        return nullptr;
    }
  }

 private:
  template <typename Begin>
  static System::Function Start(const Begin& begin) {
    return [begin] {
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = begin(&request);
      return Tested(code, request);
    };
  }
};

class MpiSystem : public System {
 public:
  MpiSystem(int rank, int size, bool is_nonblocking)
      : rank_(rank), size_(size), is_nonblocking_(is_nonblocking) {}

  std::string Describe() const override {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    // "Open MPI v4.1.4, package: ...", "MPICH Version:\t4.0.2\n...".
    std::string name = std::string(version, length);
    name = name.substr(0, name.find_first_of(",\n"));
    return absl::StrCat(absl::StrReplaceAll(name, {{"\t", " "}}), ", C", Settings());
  }

  Function Prepare(const Call& call) override {
    if (is_nonblocking_) return NonblockingCalls::Prepare(call, rank_);
    float *const in = call.input, *const out = call.output;
    const int count = static_cast<int>(call.count);
    switch (call.operation) {
      case Operation::kAllReduce:
        return [=] { return Ok(MPI_Allreduce(MPI_IN_PLACE, out, count, kFloat, MPI_SUM, kWorld)); };
      case Operation::kBroadcast:
        return [=] { return Ok(MPI_Bcast(out, count, kFloat, 0, kWorld)); };
      case Operation::kReduce: {
        const void* const from = rank_ == 0 ? MPI_IN_PLACE : in;
        return [=] { return Ok(MPI_Reduce(from, out, count, kFloat, MPI_SUM, 0, kWorld)); };
      }
      case Operation::kBarrier:
        return [] { return Ok(MPI_Barrier(kWorld)); };
      case Operation::kSendRecv:
        return PingPong(in, out, count);
      default:
        return PrepareParts(call);
    }
  }

 private:
  static Function PrepareParts(const Call& call) {
    float *const in = call.input, *const out = call.output;
    const int part = static_cast<int>(call.part);
    switch (call.operation) {
      case Operation::kAllGather:
        return [=] { return Ok(MPI_Allgather(in, part, kFloat, out, part, kFloat, kWorld)); };
      case Operation::kGather:
        return [=] { return Ok(MPI_Gather(in, part, kFloat, out, part, kFloat, 0, kWorld)); };
      case Operation::kScatter:
        return [=] { return Ok(MPI_Scatter(in, part, kFloat, out, part, kFloat, 0, kWorld)); };
      case Operation::kReduceScatter:
        return [=] { return Ok(MPI_Reduce_scatter_block(in, out, part, kFloat, MPI_SUM, kWorld)); };
      case Operation::kAllToAll:
        return [=] { return Ok(MPI_Alltoall(in, part, kFloat, out, part, kFloat, kWorld)); };
      default:
        return nullptr;
    }
  }

  Function PingPong(float* in, float* out, int count) const {
    const int peer = rank_ ^ 1;
    if (peer >= size_) return [] { return absl::OkStatus(); };
    const auto send = [=] { return Ok(MPI_Send(in, count, kFloat, peer, 0, kWorld)); };
    const auto receive = [=] {
      return Ok(MPI_Recv(out, count, kFloat, peer, 0, kWorld, MPI_STATUS_IGNORE));
    };
    if (rank_ < peer) {
      return [=] {
        const absl::Status status = send();
        return status.ok() ? receive() : status;
      };
    }
    return [=] {
      const absl::Status status = receive();
      return status.ok() ? send() : status;
    };
  }

  const int rank_, size_;
  const bool is_nonblocking_;
};

int Main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Options options = ParseOptions(argc, argv);
  MPI_Comm_rank(kWorld, &options.rank);
  MPI_Comm_size(kWorld, &options.size);
  MPI_Comm_set_errhandler(kWorld, MPI_ERRORS_RETURN);
  MpiSystem system(options.rank, options.size, options.variant == "nonblocking");
  const int status = Serve(options, system);
  MPI_Finalize();
  return status;
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
