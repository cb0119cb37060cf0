// The functions of MPI that the backend needs, as a table, in types that do not depend on which MPI
// there is.
//
// The three families of MPI libraries (Open MPI, MPICH, and the standard ABI of MPI 5) have the
// same functions with different types: MPI_Comm is a pointer in one and an int in the other. So one
// source, mpi_plugin.cc, is compiled against the header of each family to a plug-in that fills in
// this table, and everything else of the backend is compiled once. mpi_library.h loads a plug-in.
//
// This header includes nothing of Syncline and nothing of Abseil: plug-ins are linked with neither.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_API_H_
#define SYNCLINE_BACKENDS_MPI_MPI_API_H_

#include <cstddef>
#include <cstdint>

namespace syncline::mpi {

// An MPI_Comm, MPI_Request or MPI_Op of whatever family: its bits, in the lower bytes. A value; of
// requests see MpiApi::test.
using MpiHandle = intptr_t;

// What a receive has received. Of one that was cancelled, and has received nothing, only
// `is_cancelled` counts.
struct MpiMessage {
  int source;
  int tag;
  int64_t bytes;
  bool is_cancelled;
};

inline constexpr int kMpiAnySource = -1;  // For `source` of irecv, whatever MPI_ANY_SOURCE is.
inline constexpr int kMpiSuccess = 0;     // MPI_SUCCESS, in every family.

// The thread levels of MPI, in their order.
enum class MpiThreadLevel : int { kSingle, kFunneled, kSerialized, kMultiple };

// All functions return an MPI error code, kMpiSuccess if all is well, unless they say otherwise;
// communicators made here have MPI_ERRORS_RETURN set. Buffers are MPI_BYTEs, and their sizes may
// exceed INT_MAX: where the library has no MPI_..._c functions, a derived datatype carries them.
// What a function promises of threads, and of blocking, is what MPI promises of the function that
// it is named after.
struct MpiApi {
  // Of this struct. A plug-in of another version is refused.
  static constexpr int kVersion = 2;
  int version;

  // The header that the plug-in was compiled against: "Open MPI", "MPICH" or "MPI 5 ABI".
  const char* family;

  // MPI_Get_library_version, cut off at `size`; and the text of an error code. Both end with a
  // zero.
  int (*library_version)(char* text, size_t size);
  int (*error_string)(int error, char* text, size_t size);
  // Whether `error` is of the class that ULFM reports for a dead process: MPI_ERR_PROC_FAILED,
  // MPI_ERR_PROC_FAILED_PENDING or MPI_ERR_REVOKED. Where there is no ULFM, 0 for every error.
  int (*is_process_failure)(int error);

  int (*initialized)(int* flag);
  int (*finalized)(int* flag);
  // MPI_Init_thread, which asks for kMultiple and says what it got. Then sets MPI_ERRORS_RETURN on
  // MPI_COMM_WORLD and MPI_COMM_SELF.
  int (*init_thread)(MpiThreadLevel* provided);
  int (*query_thread)(MpiThreadLevel* provided);
  int (*is_thread_main)(int* flag);
  int (*finalize)();
  // Has MPI_Finalize call `function` before it does anything else, whoever calls MPI_Finalize: an
  // attribute of MPI_COMM_SELF, which goes first. Once for a process.
  int (*before_finalize)(void (*function)());

  MpiHandle (*comm_world)();
  MpiHandle (*comm_null)();
  int (*comm_rank)(MpiHandle comm, int* rank);
  int (*comm_size)(MpiHandle comm, int* size);
  int (*comm_test_inter)(MpiHandle comm, int* flag);  // Whether it is an intercommunicator.
  // MPI_Comm_create_group of `ranks` of `comm`, in that order, with the errhandler set. Collective
  // over these ranks; blocks.
  int (*comm_create_group)(MpiHandle comm, const int* ranks, int count, int tag, MpiHandle* made);
  // MPI_Comm_dup, with the errhandler set. Collective; blocks.
  int (*comm_dup)(MpiHandle comm, MpiHandle* made);
  // MPI_Comm_idup, without an errhandler. `*made` is set when the request completes, and must exist
  // until then.
  int (*comm_idup)(MpiHandle comm, MpiHandle* made, MpiHandle* request);
  int (*comm_return_errors)(MpiHandle comm);  // Sets MPI_ERRORS_RETURN.
  int (*comm_free)(MpiHandle* comm);  // Collective in MPI's eyes; blocks in no known library.
  // For each of `count` ranks of `comm`, its rank in MPI_COMM_WORLD, or -1 if it has none.
  int (*world_ranks)(MpiHandle comm, const int* ranks, int count, int* world_ranks);
  // The attribute MPI_TAG_UB of `comm`.
  int (*tag_upper_bound)(MpiHandle comm, int* bound);

  // For the start of a job, before there is a store. At most INT_MAX bytes of each rank; `received`
  // has `bytes` for each. A collective's request cannot be cancelled.
  int (*ibcast)(void* data, size_t bytes, int root, MpiHandle comm, MpiHandle* request);
  int (*iallgather)(const void* sent, size_t bytes, void* received, MpiHandle comm,
                    MpiHandle* request);

  int (*isend)(const void* data, size_t bytes, int destination, int tag, MpiHandle comm,
               MpiHandle* request);
  // `source` may be kMpiAnySource.
  int (*irecv)(void* data, size_t bytes, int source, int tag, MpiHandle comm, MpiHandle* request);
  // Whether the request is complete; it is then gone, and *request is request_null(). `message` may
  // be null; if not, it says what a receive has received. An error of the operation is returned,
  // and `done` then says whether the request is gone: with ULFM, a receive from any source is not
  // while a dead process has not been acknowledged, and may be tested again or cancelled.
  int (*test)(MpiHandle* request, int* done, MpiMessage* message);
  // Asks for the end of a receive that has not begun. The request must still be tested until it is
  // complete: MpiMessage::is_cancelled says whether it was cancelled, or has received a message.
  int (*cancel)(MpiHandle* request);
  MpiHandle (*request_null)();

  // ULFM: MPI_Comm_revoke and its like, which are MPIX_ in today's libraries. Null where the loaded
  // library has none, or has some that abort the process, as MPICH does. shrink and agree are
  // collective over the ranks that live, and block. Only where is_fault_tolerant says 1, once MPI
  // is initialised, do they do anything: Open MPI wants mpirun --with-ft ulfm for that.
  int (*is_fault_tolerant)(int* flag);
  int (*comm_revoke)(MpiHandle comm);
  int (*comm_shrink)(MpiHandle comm, MpiHandle* made);
  int (*comm_agree)(MpiHandle comm, int* flag);
};

// What a plug-in exports, with C linkage, under the name kMpiPluginSymbol. The table is static, and
// complete when the first call returns; not thread-safe. Requires that the symbols of an MPI
// library of the plug-in's family are in the global scope of the process: what family they are of
// is for the caller to know. Returns null if the library is older than MPI 3.
using MpiPluginFunction = const MpiApi* (*)();
inline constexpr char kMpiPluginSymbol[] = "SynclineMpiPlugin";

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_API_H_
