// Compares backends/nccl/nccl_api.h, and what the stand-in has beside it, with NCCL's own header
// when it is compiled. Only to be built where the wheel of NCCL can be downloaded; it is `manual`.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "backends/nccl/nccl_api.h"
#include "backends/nccl/testing/fake_nccl/more_functions.h"

namespace syncline::nccl {
namespace {

// Whether `Ours` is passed and stored as `Theirs` is. Enumerations have the size of int in both;
// what pointers lead to is compared where it is not opaque.
template <typename Ours, typename Theirs>
constexpr bool IsSame() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_enum_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_same_v<Theirs, cudaStream_t>) {
    return std::is_same_v<Ours, NcclStream>;
  } else if constexpr (std::is_same_v<Theirs, ncclComm_t>) {
    return std::is_same_v<Ours, NcclComm>;
  } else if constexpr (std::is_same_v<Theirs, ncclWindow_t>) {
    return std::is_same_v<Ours, NcclWindow>;
  } else if constexpr (std::is_same_v<Theirs, ncclUniqueId>) {
    return std::is_same_v<Ours, NcclUniqueId>;
  } else if constexpr (std::is_same_v<Theirs, ncclConfig_t>) {
    return std::is_same_v<Ours, NcclConfig>;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OursOf = std::remove_pointer_t<Ours>;
    using TheirsOf = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OursOf> == std::is_const_v<TheirsOf> &&
           IsSame<std::remove_const_t<OursOf>, std::remove_const_t<TheirsOf>>();
  } else {
    return false;
  }
}

template <typename Ours, typename Theirs>
struct Function;

template <typename Result, typename... Parameters, typename TheirResult,
          typename... TheirParameters>
struct Function<Result (*)(Parameters...), TheirResult (*)(TheirParameters...)> {
  static constexpr bool AreSame() {
    if constexpr (sizeof...(Parameters) != sizeof...(TheirParameters)) {
      return false;
    } else {
      return IsSame<Result, TheirResult>() && (IsSame<Parameters, TheirParameters>() && ...);
    }
  }
};

// What is compared can differ.
static_assert(!Function<int (*)(int), int (*)(long)>::AreSame());  // NOLINT
static_assert(!Function<int (*)(int), int (*)(int, int)>::AreSame());
static_assert(!IsSame<const char*, char*>());
static_assert(!IsSame<NcclStream, ncclComm_t>());

#define SAME_FUNCTION(ours, theirs) \
  static_assert(Function<decltype(MoreNcclApi::ours), decltype(&::theirs)>::AreSame())
SAME_FUNCTION(get_version, ncclGetVersion);
SAME_FUNCTION(get_error_string, ncclGetErrorString);
SAME_FUNCTION(get_last_error, ncclGetLastError);
SAME_FUNCTION(get_unique_id, ncclGetUniqueId);
SAME_FUNCTION(comm_init_rank, ncclCommInitRank);
SAME_FUNCTION(comm_init_rank_config, ncclCommInitRankConfig);
SAME_FUNCTION(comm_finalize, ncclCommFinalize);
SAME_FUNCTION(comm_destroy, ncclCommDestroy);
SAME_FUNCTION(comm_abort, ncclCommAbort);
SAME_FUNCTION(comm_split, ncclCommSplit);
SAME_FUNCTION(comm_get_async_error, ncclCommGetAsyncError);
SAME_FUNCTION(comm_count, ncclCommCount);
SAME_FUNCTION(comm_cu_device, ncclCommCuDevice);
SAME_FUNCTION(comm_user_rank, ncclCommUserRank);
SAME_FUNCTION(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum);
SAME_FUNCTION(red_op_destroy, ncclRedOpDestroy);
SAME_FUNCTION(reduce, ncclReduce);
SAME_FUNCTION(bcast, ncclBcast);
SAME_FUNCTION(broadcast, ncclBroadcast);
SAME_FUNCTION(all_reduce, ncclAllReduce);
SAME_FUNCTION(reduce_scatter, ncclReduceScatter);
SAME_FUNCTION(all_gather, ncclAllGather);
SAME_FUNCTION(send, ncclSend);
SAME_FUNCTION(recv, ncclRecv);
SAME_FUNCTION(group_start, ncclGroupStart);
SAME_FUNCTION(group_end, ncclGroupEnd);
SAME_FUNCTION(mem_alloc, ncclMemAlloc);
SAME_FUNCTION(mem_free, ncclMemFree);
SAME_FUNCTION(comm_register, ncclCommRegister);
SAME_FUNCTION(comm_deregister, ncclCommDeregister);
SAME_FUNCTION(comm_init_rank_scalable, ncclCommInitRankScalable);
SAME_FUNCTION(comm_shrink, ncclCommShrink);
SAME_FUNCTION(comm_window_register, ncclCommWindowRegister);
SAME_FUNCTION(comm_window_deregister, ncclCommWindowDeregister);
SAME_FUNCTION(all_to_all, ncclAlltoAll);
SAME_FUNCTION(gather, ncclGather);
SAME_FUNCTION(scatter, ncclScatter);
SAME_FUNCTION(comm_revoke, ncclCommRevoke);
SAME_FUNCTION(comm_get_unique_id, ncclCommGetUniqueId);
SAME_FUNCTION(comm_grow, ncclCommGrow);

static_assert(static_cast<int>(kNcclSuccess) == static_cast<int>(ncclSuccess));
static_assert(static_cast<int>(kNcclUnhandledCudaError) ==
              static_cast<int>(ncclUnhandledCudaError));
static_assert(static_cast<int>(kNcclSystemError) == static_cast<int>(ncclSystemError));
static_assert(static_cast<int>(kNcclInternalError) == static_cast<int>(ncclInternalError));
static_assert(static_cast<int>(kNcclInvalidArgument) == static_cast<int>(ncclInvalidArgument));
static_assert(static_cast<int>(kNcclInvalidUsage) == static_cast<int>(ncclInvalidUsage));
static_assert(static_cast<int>(kNcclRemoteError) == static_cast<int>(ncclRemoteError));
static_assert(static_cast<int>(kNcclInProgress) == static_cast<int>(ncclInProgress));
static_assert(static_cast<int>(kNcclTimeout) == static_cast<int>(ncclTimeout));
static_assert(static_cast<int>(kNcclInt8) == static_cast<int>(ncclInt8));
static_assert(static_cast<int>(kNcclUint8) == static_cast<int>(ncclUint8));
static_assert(static_cast<int>(kNcclInt32) == static_cast<int>(ncclInt32));
static_assert(static_cast<int>(kNcclUint32) == static_cast<int>(ncclUint32));
static_assert(static_cast<int>(kNcclInt64) == static_cast<int>(ncclInt64));
static_assert(static_cast<int>(kNcclUint64) == static_cast<int>(ncclUint64));
static_assert(static_cast<int>(kNcclFloat16) == static_cast<int>(ncclFloat16));
static_assert(static_cast<int>(kNcclFloat32) == static_cast<int>(ncclFloat32));
static_assert(static_cast<int>(kNcclFloat64) == static_cast<int>(ncclFloat64));
static_assert(static_cast<int>(kNcclBfloat16) == static_cast<int>(ncclBfloat16));
static_assert(static_cast<int>(kNcclFloat8E4M3) == static_cast<int>(ncclFloat8e4m3));
static_assert(static_cast<int>(kNcclFloat8E5M2) == static_cast<int>(ncclFloat8e5m2));
static_assert(static_cast<int>(kNcclSum) == static_cast<int>(ncclSum));
static_assert(static_cast<int>(kNcclProd) == static_cast<int>(ncclProd));
static_assert(static_cast<int>(kNcclMax) == static_cast<int>(ncclMax));
static_assert(static_cast<int>(kNcclMin) == static_cast<int>(ncclMin));
static_assert(static_cast<int>(kNcclAvg) == static_cast<int>(ncclAvg));
static_assert(static_cast<int>(kNcclScalarDevice) == static_cast<int>(ncclScalarDevice));
static_assert(static_cast<int>(kNcclScalarHostImmediate) ==
              static_cast<int>(ncclScalarHostImmediate));
static_assert(static_cast<int>(kNcclConfigUndefined) == static_cast<int>(NCCL_CONFIG_UNDEF_INT));
static_assert(static_cast<int>(kNcclSplitNoColor) == static_cast<int>(NCCL_SPLIT_NOCOLOR));
static_assert(static_cast<int>(kNcclShrinkDefault) == static_cast<int>(NCCL_SHRINK_DEFAULT));
static_assert(static_cast<int>(kNcclShrinkAbort) == static_cast<int>(NCCL_SHRINK_ABORT));
static_assert(static_cast<int>(kNcclRevokeDefault) == static_cast<int>(NCCL_REVOKE_DEFAULT));
static_assert(static_cast<int>(kNcclUniqueIdBytes) == static_cast<int>(NCCL_UNIQUE_ID_BYTES));
static_assert(NcclVersion(2, 30, 7) == NCCL_VERSION(2, 30, 7));
static_assert(ncclNumTypes == 12 && ncclNumOps == 5 && ncclNumResults == 9, "there are more now");

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(NcclUniqueId) == alignof(ncclUniqueId));
static_assert(sizeof(NcclConfig) == sizeof(ncclConfig_t));
static_assert(alignof(NcclConfig) == alignof(ncclConfig_t));
#define SAME_FIELD(ours, theirs)                                                \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs) && \
                std::is_same_v<decltype(NcclConfig::ours), decltype(ncclConfig_t::theirs)>)
SAME_FIELD(size, size);
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(cga_cluster_size, cgaClusterSize);
SAME_FIELD(min_ctas, minCTAs);
SAME_FIELD(max_ctas, maxCTAs);
SAME_FIELD(net_name, netName);
SAME_FIELD(split_share, splitShare);
SAME_FIELD(traffic_class, trafficClass);
SAME_FIELD(comm_name, commName);
SAME_FIELD(collnet_enable, collnetEnable);
SAME_FIELD(cta_policy, CTAPolicy);
SAME_FIELD(shrink_share, shrinkShare);
SAME_FIELD(nvls_ctas, nvlsCTAs);
SAME_FIELD(n_channels_per_net_peer, nChannelsPerNetPeer);
SAME_FIELD(nvlink_centric_sched, nvlinkCentricSched);
SAME_FIELD(graph_usage_mode, graphUsageMode);
SAME_FIELD(num_rma_ctx, numRmaCtx);
SAME_FIELD(max_p2p_peers, maxP2pPeers);
SAME_FIELD(graph_stream_ordering, graphStreamOrdering);

}  // namespace
}  // namespace syncline::nccl

// NCCL_CONFIG_INITIALIZER, field by field: the bytes between them do not count.
int main() {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const syncline::nccl::NcclConfig ours;
  const bool are_same =
      ours.size == theirs.size && ours.magic == theirs.magic && ours.version == theirs.version &&
      ours.blocking == theirs.blocking && ours.cga_cluster_size == theirs.cgaClusterSize &&
      ours.min_ctas == theirs.minCTAs && ours.max_ctas == theirs.maxCTAs &&
      ours.net_name == theirs.netName && ours.split_share == theirs.splitShare &&
      ours.traffic_class == theirs.trafficClass && ours.comm_name == theirs.commName &&
      ours.collnet_enable == theirs.collnetEnable && ours.cta_policy == theirs.CTAPolicy &&
      ours.shrink_share == theirs.shrinkShare && ours.nvls_ctas == theirs.nvlsCTAs &&
      ours.n_channels_per_net_peer == theirs.nChannelsPerNetPeer &&
      ours.nvlink_centric_sched == theirs.nvlinkCentricSched &&
      ours.graph_usage_mode == theirs.graphUsageMode && ours.num_rma_ctx == theirs.numRmaCtx &&
      ours.max_p2p_peers == theirs.maxP2pPeers &&
      ours.graph_stream_ordering == theirs.graphStreamOrdering;
  return are_same ? 0 : 1;
}
