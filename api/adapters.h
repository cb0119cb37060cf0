// What lies between the public API (syncline.pyi) and the C++ classes where their shapes differ.
// Called by the generated code of every language for methods with @adapted.
#ifndef SYNCLINE_API_ADAPTERS_H_
#define SYNCLINE_API_ADAPTERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "api/hook_adapters.h"
#include "syncline/byte_collectives.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/info.h"
#include "syncline/launcher_heartbeat.h"
#include "syncline/parameter_averager.h"
#include "syncline/preemption.h"
#include "syncline/prefix_store.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/reducer.h"
#include "syncline/reducer_stats.h"
#include "syncline/store.h"
#include "syncline/tcp_store.h"
#include "syncline/tensor.h"
#include "syncline/work.h"
#include "syncline/world.h"

namespace syncline::api {

using Timeout = std::optional<absl::Duration>;  // Nothing: the store's own, or none.

absl::StatusOr<std::string> StoreGet(Store& store, const std::string& key, Timeout timeout);
absl::Status StoreWait(Store& store, const std::vector<std::string>& keys, Timeout timeout);
absl::StatusOr<std::vector<std::string>> StoreMultiGet(Store& store,
                                                       const std::vector<std::string>& keys,
                                                       Timeout timeout);
absl::StatusOr<std::string> StoreCompareSet(Store& store, const std::string& key,
                                            const std::string& expected,
                                            const std::string& desired);
absl::StatusOr<bool> StoreDeleteKey(Store& store, const std::string& key);
absl::StatusOr<std::vector<std::string>> StoreListKeys(Store& store, const std::string& prefix);
absl::StatusOr<int64_t> StoreNumKeys(Store& store);

// ArgumentErrors if the timeout is not positive, a port is out of range, or there is no store.
absl::StatusOr<std::shared_ptr<HashStore>> HashStoreCreate(absl::Duration timeout);
absl::StatusOr<std::shared_ptr<FileStore>> FileStoreCreate(const std::string& path,
                                                           absl::Duration timeout);
absl::StatusOr<std::shared_ptr<TCPStore>> TCPStoreCreate(const std::string& host, int64_t port,
                                                         bool is_master, absl::Duration timeout);
absl::StatusOr<std::shared_ptr<PrefixStore>> PrefixStoreCreate(const std::string& prefix,
                                                               std::shared_ptr<Store> store);

absl::StatusOr<std::vector<std::string>> ProcessGroupAllGatherBytes(ProcessGroup& group,
                                                                    const std::string& value,
                                                                    Timeout timeout);
absl::StatusOr<std::string> ProcessGroupBroadcastBytes(ProcessGroup& group,
                                                       const std::string& value, int root,
                                                       Timeout timeout);
absl::StatusOr<std::vector<std::string>> ProcessGroupGatherBytes(ProcessGroup& group,
                                                                 const std::string& value, int root,
                                                                 Timeout timeout);
absl::StatusOr<std::string> ProcessGroupScatterBytes(ProcessGroup& group,
                                                     const std::vector<std::string>& values,
                                                     int root, Timeout timeout);
absl::Status ProcessGroupSendBytes(ProcessGroup& group, const std::string& value, int dst,
                                   int64_t tag, Timeout timeout);
absl::StatusOr<std::shared_ptr<Message>> ProcessGroupRecvBytes(ProcessGroup& group, int src,
                                                               int64_t tag, Timeout timeout);
absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroupSplit(
    ProcessGroup& group, const std::vector<std::vector<int>>& groups, Timeout timeout);
absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroupShrink(
    ProcessGroup& group, const std::vector<int>& ranks_to_exclude, Timeout timeout);

absl::Status WorkWait(Work& work, Timeout timeout);
absl::Status WorkSynchronize(Work& work, Timeout timeout);

absl::StatusOr<std::shared_ptr<World>> WorldInit(const std::string& backend,
                                                 const std::string& init_method,
                                                 std::shared_ptr<Store> store, int rank,
                                                 int world_size, absl::Duration timeout,
                                                 const std::string& group_name,
                                                 const std::optional<std::string>& device_id);

absl::StatusOr<std::shared_ptr<World>> WorldFromMpi(const std::string& family, int64_t handle,
                                                    const std::string& backend,
                                                    absl::Duration timeout,
                                                    const std::optional<std::string>& device_id);

absl::StatusOr<std::shared_ptr<ProcessGroup>> WorldNewGroup(
    World& world, const std::vector<int>& ranks, std::optional<std::string> backend,
    Timeout timeout, bool local_synchronization, const std::optional<std::string>& device_id);

absl::StatusOr<std::shared_ptr<Reducer>> ReducerCreate(
    std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters,
    const std::vector<std::string>& names, int64_t bucket_cap_bytes, int64_t first_bucket_cap_bytes,
    const std::vector<int64_t>& bucket_caps_bytes, const std::vector<int64_t>& sparse,
    bool find_unused_parameters, bool static_graph, bool rebuild_buckets);
absl::Status ReducerBeginStep(Reducer& reducer, bool synchronize,
                              const std::vector<int64_t>& unused, int64_t divisor);
absl::StatusOr<Tensor> ReducerGradient(const Reducer& reducer, int64_t index);
absl::Status ReducerMarkReadySparse(Reducer& reducer, int64_t index, const Tensor& indices,
                                    const Tensor& values);
absl::StatusOr<bool> ReducerIsUsed(const Reducer& reducer, int64_t index);
absl::StatusOr<Tensor> ReducerSparseIndices(const Reducer& reducer, int64_t index);
absl::StatusOr<Tensor> ReducerSparseValues(const Reducer& reducer, int64_t index);
absl::StatusOr<int64_t> ReducerCountActive(Reducer& reducer, bool is_active);
std::shared_ptr<syncline::ReducerStats> ReducerStats(const Reducer& reducer);
std::string ReducerStatsTable(const syncline::ReducerStats& stats);

absl::StatusOr<std::shared_ptr<Preemption>> PreemptionCreate(std::shared_ptr<Store> store, int rank,
                                                             int world_size,
                                                             absl::Duration timeout);

}  // namespace syncline::api

#endif  // SYNCLINE_API_ADAPTERS_H_
