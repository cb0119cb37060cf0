// What the stand-in for NCCL has of NCCL's C interface beyond nccl_api.h: the backend calls none of
// it. nccl_header_test compares this with NCCL's own header too.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_MORE_FUNCTIONS_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_MORE_FUNCTIONS_H_

#include <cstddef>

#include "backends/nccl/nccl_api.h"

namespace syncline::nccl {

// ncclWindow_t.
struct NcclWindowMemory;
using NcclWindow = NcclWindowMemory*;

inline constexpr int kNcclShrinkDefault = 0;  // NCCL_SHRINK_DEFAULT.
inline constexpr int kNcclShrinkAbort = 1;    // NCCL_SHRINK_ABORT.
inline constexpr int kNcclRevokeDefault = 0;  // NCCL_REVOKE_DEFAULT.

// All functions of the stand-in. Those that are newer than the version that it says it is fail.
struct MoreNcclApi : NcclApi {
  NcclResult (*comm_count)(NcclComm comm, int* count) = nullptr;
  NcclResult (*comm_cu_device)(NcclComm comm, int* device) = nullptr;
  NcclResult (*comm_user_rank)(NcclComm comm, int* rank) = nullptr;
  NcclResult (*bcast)(void* buffer, size_t count, NcclDataType dtype, int root, NcclComm comm,
                      NcclStream stream) = nullptr;
  // Since 2.23. The ids are as many as `ids` says, in the same order on all ranks.
  NcclResult (*comm_init_rank_scalable)(NcclComm* comm, int ranks, int rank, int ids,
                                        NcclUniqueId* id, NcclConfig* config) = nullptr;
  // Since 2.27.
  NcclResult (*comm_shrink)(NcclComm comm, int* excluded, int excluded_count, NcclComm* made,
                            NcclConfig* config, int flags) = nullptr;
  NcclResult (*comm_window_register)(NcclComm comm, void* buffer, size_t bytes, NcclWindow* window,
                                     int flags) = nullptr;
  NcclResult (*comm_window_deregister)(NcclComm comm, NcclWindow window) = nullptr;
  // Since 2.28. `count` is that of one rank's part.
  NcclResult (*all_to_all)(const void* send, void* receive, size_t count, NcclDataType dtype,
                           NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*gather)(const void* send, void* receive, size_t count, NcclDataType dtype, int root,
                       NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*scatter)(const void* send, void* receive, size_t count, NcclDataType dtype, int root,
                        NcclComm comm, NcclStream stream) = nullptr;
  // Since 2.28.7.
  NcclResult (*comm_revoke)(NcclComm comm, int flags) = nullptr;
  // Since 2.29.2. Ranks of `comm` pass rank -1, and the id only if they have made it; new ranks
  // pass a null `comm`.
  NcclResult (*comm_get_unique_id)(NcclComm comm, NcclUniqueId* id) = nullptr;
  NcclResult (*comm_grow)(NcclComm comm, int ranks, const NcclUniqueId* id, int rank,
                          NcclComm* made, NcclConfig* config) = nullptr;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_MORE_FUNCTIONS_H_
