#include "api/adapters.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/env.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"

namespace syncline::api {
namespace {

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat("timeout must be positive, not ", absl::FormatDuration(timeout)));
}

// The device of "cuda:1".
absl::StatusOr<std::optional<Device>> ParseDeviceId(const std::optional<std::string>& text) {
  if (!text.has_value()) return std::optional<Device>();
  Device device = {DeviceType::kCuda, 0};
  absl::string_view index = *text;
  if (absl::ConsumePrefix(&index, "cuda:") && absl::SimpleAtoi(index, &device.index) &&
      device.index >= 0) {
    return device;
  }
  return ArgumentError(absl::StrCat(
      "device_id must be a CUDA device with its number, such as \"cuda:0\", not \"", *text, "\""));
}

}  // namespace

absl::StatusOr<std::string> StoreGet(Store& store, const std::string& key, Timeout timeout) {
  return store.Get(key, timeout.value_or(store.timeout()));
}

absl::Status StoreWait(Store& store, const std::vector<std::string>& keys, Timeout timeout) {
  return store.Wait(keys, timeout.value_or(store.timeout()));
}

absl::StatusOr<std::vector<std::string>> StoreMultiGet(Store& store,
                                                       const std::vector<std::string>& keys,
                                                       Timeout timeout) {
  return store.MultiGet(keys, timeout.value_or(store.timeout()));
}

absl::StatusOr<std::string> StoreCompareSet(Store& store, const std::string& key,
                                            const std::string& expected,
                                            const std::string& desired) {
  SYNCLINE_ASSIGN_OR_RETURN(Store::CompareSetResult result,
                            store.CompareSet(key, expected, desired));
  return std::move(result.value);
}

absl::StatusOr<bool> StoreDeleteKey(Store& store, const std::string& key) {
  return store.Delete(key);
}

absl::StatusOr<std::vector<std::string>> StoreListKeys(Store& store, const std::string& prefix) {
  return store.Keys(prefix);
}

absl::StatusOr<int64_t> StoreNumKeys(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store.Keys(""));
  return static_cast<int64_t>(keys.size());
}

absl::StatusOr<std::shared_ptr<HashStore>> HashStoreCreate(absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  return std::make_shared<HashStore>(timeout);
}

absl::StatusOr<std::shared_ptr<FileStore>> FileStoreCreate(const std::string& path,
                                                           absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  return FileStore::Open(path, timeout);
}

absl::StatusOr<std::shared_ptr<TCPStore>> TCPStoreCreate(const std::string& host, int64_t port,
                                                         bool is_master, absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  const int64_t lowest = is_master ? 0 : 1;
  if (port < lowest || port > 65535) {
    return ArgumentError(
        absl::StrCat("port must be in ", lowest, " to 65535, not ", port,
                     port == 0 ? ": only the master can let the system choose" : ""));
  }
  TCPStore::Options options;
  options.host = host;
  options.port = static_cast<int>(port);
  options.role = is_master ? StoreConfig::Role::kServer : StoreConfig::Role::kClient;
  options.timeout = timeout;
  SYNCLINE_ASSIGN_OR_RETURN(options.secret, base::JobSecret());
  return TCPStore::Create(options);
}

absl::StatusOr<std::shared_ptr<PrefixStore>> PrefixStoreCreate(const std::string& prefix,
                                                               std::shared_ptr<Store> store) {
  return std::make_shared<PrefixStore>(prefix, std::move(store));
}

absl::StatusOr<std::vector<std::string>> ProcessGroupAllGatherBytes(ProcessGroup& group,
                                                                    const std::string& value,
                                                                    Timeout timeout) {
  return AllGatherBytes(group, value, timeout);
}
absl::StatusOr<std::string> ProcessGroupBroadcastBytes(ProcessGroup& group,
                                                       const std::string& value, int root,
                                                       Timeout timeout) {
  return BroadcastBytes(group, value, root, timeout);
}
absl::StatusOr<std::vector<std::string>> ProcessGroupGatherBytes(ProcessGroup& group,
                                                                 const std::string& value, int root,
                                                                 Timeout timeout) {
  return GatherBytes(group, value, root, timeout);
}
absl::StatusOr<std::string> ProcessGroupScatterBytes(ProcessGroup& group,
                                                     const std::vector<std::string>& values,
                                                     int root, Timeout timeout) {
  return ScatterBytes(group, values, root, timeout);
}
absl::Status ProcessGroupSendBytes(ProcessGroup& group, const std::string& value, int dst,
                                   int64_t tag, Timeout timeout) {
  return SendBytes(group, value, dst, tag, timeout);
}
absl::StatusOr<std::shared_ptr<Message>> ProcessGroupRecvBytes(ProcessGroup& group, int src,
                                                               int64_t tag, Timeout timeout) {
  return RecvBytes(group, src, tag, timeout);
}
absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroupSplit(
    ProcessGroup& group, const std::vector<std::vector<int>>& groups, Timeout timeout) {
  return Split(group, groups, timeout);
}
absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroupShrink(
    ProcessGroup& group, const std::vector<int>& ranks_to_exclude, Timeout timeout) {
  return Shrink(group, ranks_to_exclude, timeout);
}

absl::Status WorkWait(Work& work, Timeout timeout) { return work.Wait(timeout); }
absl::Status WorkSynchronize(Work& work, Timeout timeout) {
  return work.Synchronize(timeout.value_or(absl::InfiniteDuration()));
}

absl::StatusOr<std::shared_ptr<World>> WorldInit(const std::string& backend,
                                                 const std::string& init_method,
                                                 std::shared_ptr<Store> store, int rank,
                                                 int world_size, absl::Duration timeout,
                                                 const std::string& group_name,
                                                 const std::optional<std::string>& device_id) {
  WorldOptions options;
  SYNCLINE_ASSIGN_OR_RETURN(options.device_id, ParseDeviceId(device_id));
  options.backend = backend;
  options.init_method = init_method;
  options.store = std::move(store);
  options.rank = rank;
  options.size = world_size;
  options.timeout = timeout;
  options.group_name = group_name;
  return World::Init(options);
}

absl::StatusOr<std::shared_ptr<World>> WorldFromMpi(const std::string& family, int64_t handle,
                                                    const std::string& backend,
                                                    absl::Duration timeout,
                                                    const std::optional<std::string>& device_id) {
  WorldOptions options;
  SYNCLINE_ASSIGN_OR_RETURN(options.device_id, ParseDeviceId(device_id));
  options.backend = backend;
  options.timeout = timeout;
  return World::FromMpi(MpiComm(family, handle), options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> WorldNewGroup(
    World& world, const std::vector<int>& ranks, std::optional<std::string> backend,
    Timeout timeout, bool local_synchronization, const std::optional<std::string>& device_id) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::optional<Device> device, ParseDeviceId(device_id));
  return local_synchronization ? world.NewLocalGroup(ranks, std::move(backend), timeout, device)
                               : world.NewGroup(ranks, std::move(backend), timeout, device);
}

absl::StatusOr<std::shared_ptr<Reducer>> ReducerCreate(
    std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters,
    const std::vector<std::string>& names, int64_t bucket_cap_bytes, int64_t first_bucket_cap_bytes,
    const std::vector<int64_t>& bucket_caps_bytes, const std::vector<int64_t>& sparse,
    bool find_unused_parameters, bool static_graph, bool rebuild_buckets) {
  Reducer::Options options;
  options.names = names;
  options.caps = {first_bucket_cap_bytes, bucket_cap_bytes, bucket_caps_bytes};
  options.sparse = sparse;
  options.rebuild = rebuild_buckets;
  if (find_unused_parameters) options.unused = Reducer::Unused::kFound;
  if (static_graph) options.unused = Reducer::Unused::kRecorded;  // Which finds them too.
  return Reducer::Create(std::move(group), parameters, std::move(options));
}

absl::Status ReducerBeginStep(Reducer& reducer, bool synchronize,
                              const std::vector<int64_t>& unused, int64_t divisor) {
  Reducer::Step step;
  step.sync = synchronize ? Reducer::Sync::kAllRanks : Reducer::Sync::kNone;
  step.unused = unused;
  step.divisor = divisor;
  return reducer.BeginStep(step);
}

absl::StatusOr<Tensor> ReducerGradient(const Reducer& reducer, int64_t index) {
  return reducer.gradient(index);
}

absl::Status ReducerMarkReadySparse(Reducer& reducer, int64_t index, const Tensor& indices,
                                    const Tensor& values) {
  return reducer.MarkReadySparse(index, {indices, values});
}

absl::StatusOr<bool> ReducerIsUsed(const Reducer& reducer, int64_t index) {
  return reducer.is_used(index);
}

absl::StatusOr<Tensor> ReducerSparseIndices(const Reducer& reducer, int64_t index) {
  SYNCLINE_ASSIGN_OR_RETURN(Reducer::Rows rows, reducer.rows(index));
  return rows.indices;
}

absl::StatusOr<Tensor> ReducerSparseValues(const Reducer& reducer, int64_t index) {
  SYNCLINE_ASSIGN_OR_RETURN(Reducer::Rows rows, reducer.rows(index));
  return rows.values;
}

absl::StatusOr<int64_t> ReducerCountActive(Reducer& reducer, bool is_active) {
  return reducer.CountActive(is_active ? Reducer::Activity::kActive : Reducer::Activity::kJoined);
}

std::shared_ptr<syncline::ReducerStats> ReducerStats(const Reducer& reducer) {
  return std::make_shared<syncline::ReducerStats>(reducer.stats());
}

std::string ReducerStatsTable(const syncline::ReducerStats& stats) { return stats.ToString(); }

absl::StatusOr<std::shared_ptr<Preemption>> PreemptionCreate(std::shared_ptr<Store> store, int rank,
                                                             int world_size,
                                                             absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  Preemption::Options options;
  options.timeout = timeout;
  return Preemption::Create(std::move(store), rank, world_size, options);
}

}  // namespace syncline::api
