// NCCL's C interface: its types, and its functions as a table.
//
// Syncline is built without NCCL's and CUDA's headers, so what they define and the backend uses is
// declared here. Names and values are NCCL's, in our spelling: kNcclAvg is ncclAvg, and
// NcclApi::all_reduce is ncclAllReduce. nccl_header_test compares this with NCCL's own header.
// Includes nothing of Syncline: the stand-in for NCCL (testing/fake_nccl) is written against it
// too.
#ifndef SYNCLINE_BACKENDS_NCCL_NCCL_API_H_
#define SYNCLINE_BACKENDS_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <string>

namespace syncline::nccl {

// ncclResult_t. Later versions may return more values.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
  kNcclTimeout = 8,  // Since 2.30.
};

// ncclDataType_t.
enum NcclDataType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
  kNcclFloat8E4M3 = 10,  // Since 2.24.
  kNcclFloat8E5M2 = 11,  // Likewise.
};

// ncclRedOp_t. Larger values are operations that NcclApi::red_op_create_pre_mul_sum has made.
enum NcclRedOp : int {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAvg = 4,
};

// ncclScalarResidence_t: when the scalar of a pre-multiplied sum is read.
enum NcclScalarResidence : int {
  kNcclScalarDevice = 0,         // While the collective runs, from memory that the device reaches.
  kNcclScalarHostImmediate = 1,  // Before the function that makes the operation returns.
};

// ncclUniqueId: what rank 0 makes and all ranks of one communicator begin with.
inline constexpr size_t kNcclUniqueIdBytes = 128;
struct NcclUniqueId {
  char internal[kNcclUniqueIdBytes];
};

// ncclComm_t.
struct NcclCommunicator;
using NcclComm = NcclCommunicator*;

// cudaStream_t, which is the driver's CUstream: Stream::handle.
using NcclStream = void*;

inline constexpr int kNcclConfigUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT.
inline constexpr int kNcclSplitNoColor = -1;          // NCCL_SPLIT_NOCOLOR.

// What NCCL_VERSION_CODE is for a version: 2.30.7 is 23007. (Before 2.9 it was smaller: 2.8.4 is
// 2804. All that count here are later.)
constexpr int NcclVersion(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

// ncclConfig_t of NCCL 2.30, with nothing chosen. Each version of NCCL reads as many bytes as it
// knows and no more than `size`, so that this serves older and newer ones: they ignore the fields
// that they lack, and set those that this lacks to their defaults.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = NcclVersion(2, 30, 7);
  int blocking = kNcclConfigUndefined;  // 0: functions return kNcclInProgress and go on.
  int cga_cluster_size = kNcclConfigUndefined;
  int min_ctas = kNcclConfigUndefined;
  int max_ctas = kNcclConfigUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclConfigUndefined;
  int traffic_class = kNcclConfigUndefined;            // Since 2.26.
  const char* comm_name = nullptr;                     // Since 2.27.
  int collnet_enable = kNcclConfigUndefined;           // Since 2.27.
  int cta_policy = kNcclConfigUndefined;               // Since 2.27.
  int shrink_share = kNcclConfigUndefined;             // Since 2.27.
  int nvls_ctas = kNcclConfigUndefined;                // Since 2.27.
  int n_channels_per_net_peer = kNcclConfigUndefined;  // This and those below: since 2.28 to 2.30.
  int nvlink_centric_sched = kNcclConfigUndefined;
  int graph_usage_mode = kNcclConfigUndefined;
  int num_rma_ctx = kNcclConfigUndefined;
  int max_p2p_peers = kNcclConfigUndefined;
  int graph_stream_ordering = kNcclConfigUndefined;
};

// Those functions of one NCCL library that the backend and its benchmark call. What they do, how
// they group, and which threads may call them is what NCCL's manual says of the functions that they
// are named after. Filled in by LoadNccl (nccl_library.h). Immutable.
struct NcclApi {
  // ncclGetVersion: 23007 for 2.30.7. Not below kOldest.
  int version = 0;
  // Of the file, for messages.
  std::string path;

  static constexpr int kOldest = NcclVersion(2, 18, 0);

  // Of every version that is loaded.
  NcclResult (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  // What the last error was about. The text may be that of any thread and communicator.
  const char* (*get_last_error)(NcclComm comm) = nullptr;

  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*comm_init_rank)(NcclComm* comm, int ranks, NcclUniqueId id, int rank) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_finalize)(NcclComm comm) = nullptr;
  NcclResult (*comm_destroy)(NcclComm comm) = nullptr;
  NcclResult (*comm_abort)(NcclComm comm) = nullptr;
  NcclResult (*comm_split)(NcclComm comm, int color, int key, NcclComm* made,
                           NcclConfig* config) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* error) = nullptr;

  NcclResult (*red_op_create_pre_mul_sum)(NcclRedOp* op, void* scalar, NcclDataType dtype,
                                          NcclScalarResidence residence, NcclComm comm) = nullptr;
  NcclResult (*red_op_destroy)(NcclRedOp op, NcclComm comm) = nullptr;

  NcclResult (*reduce)(const void* send, void* receive, size_t count, NcclDataType dtype,
                       NcclRedOp op, int root, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*broadcast)(const void* send, void* receive, size_t count, NcclDataType dtype,
                          int root, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*all_reduce)(const void* send, void* receive, size_t count, NcclDataType dtype,
                           NcclRedOp op, NcclComm comm, NcclStream stream) = nullptr;
  // `count` is that of one rank's part: of what is received here, and sent in all_gather.
  NcclResult (*reduce_scatter)(const void* send, void* receive, size_t count, NcclDataType dtype,
                               NcclRedOp op, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*all_gather)(const void* send, void* receive, size_t count, NcclDataType dtype,
                           NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*send)(const void* buffer, size_t count, NcclDataType dtype, int peer, NcclComm comm,
                     NcclStream stream) = nullptr;
  NcclResult (*recv)(void* buffer, size_t count, NcclDataType dtype, int peer, NcclComm comm,
                     NcclStream stream) = nullptr;

  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;

  // Null where the library lacks them, or is older than the version that is said to have them.
  // Since 2.19.
  NcclResult (*mem_alloc)(void** address, size_t bytes) = nullptr;
  NcclResult (*mem_free)(void* address) = nullptr;
  NcclResult (*comm_register)(NcclComm comm, void* buffer, size_t bytes, void** handle) = nullptr;
  NcclResult (*comm_deregister)(NcclComm comm, void* handle) = nullptr;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_NCCL_API_H_
