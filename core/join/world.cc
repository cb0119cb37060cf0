#include "syncline/world.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/env.h"
#include "core/base/liveness.h"
#include "core/group/backend_spec.h"
#include "core/group/child_communicators.h"
#include "core/join/cluster_task.h"
#include "core/join/host_address.h"
#include "core/join/init_method.h"
#include "core/join/join_protocol.h"
#include "core/join/mpi_store.h"
#include "core/join/open_store.h"
#include "core/store/check_same.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using join::InitMethod;
using join::OpenedStore;

absl::Status CheckDeviceId(const std::optional<Device>& device_id) {
  if (!device_id.has_value() || device_id->type != DeviceType::kCpu) return absl::OkStatus();
  return ArgumentError("device_id must be a CUDA device, such as cuda:0, not the CPU");
}

absl::Status CheckOptions(const WorldOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckDeviceId(options.device_id));
  if (options.store == nullptr) {
    if (options.rank >= -1 && options.size >= -1) return absl::OkStatus();
    return ArgumentError(
        absl::StrCat("rank and world_size must be at least 0, or -1 if they are "
                     "not given; got rank ",
                     options.rank, ", world_size ", options.size));
  }
  if (!options.init_method.empty()) {
    return ArgumentError("give either store or init_method, not both");
  }
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return ArgumentError(
        absl::StrCat("with a store, rank and world_size are needed, 0 <= rank < "
                     "world_size; got rank ",
                     options.rank, ", world_size ", options.size));
  }
  return absl::OkStatus();
}

// For messages: why this process is the only rank. Nothing if it may have peers.
std::optional<std::string> SingleProcessReason(const WorldOptions& options) {
  const bool asks_environment = options.init_method.empty() || options.init_method == "env://";
  if (options.store != nullptr || !asks_environment) return std::nullopt;
  if (options.rank == 0 && options.size == 1) return "rank 0 and world_size 1 were passed";
  if (!options.init_method.empty() || join::HasLauncher() || options.rank >= 0) return std::nullopt;
  if (options.size >= 0 && options.size != 1) return std::nullopt;
  const std::optional<join::ClusterTask> task = join::DetectTask(base::GetEnv);
  if (task.has_value() && (task->size > 1 || !task->defect.empty())) return std::nullopt;
  return join::DescribeSingleProcess(base::GetEnv);
}

// Where backend mpi is all that is asked for, MPI knows the rest.
std::string InitMethodUrl(const WorldOptions& options) {
  if (!options.init_method.empty()) return options.init_method;
  const bool says_nothing = options.rank < 0 && options.size < 0 && !join::HasLauncher();
  return says_nothing && absl::EqualsIgnoreCase(options.backend, "mpi") ? "mpi://" : "env://";
}

// Opens the store of `method`. Logs where it is if only the environment says so: no user has read
// it anywhere.
absl::StatusOr<OpenedStore> OpenAndLog(const InitMethod& method, const Deadline& deadline) {
  if (method.from.empty()) return join::OpenStore(method, deadline);
  std::string address = absl::StrCat(method.store.host, ", port ", method.store.port);
  if (method.scheme == "file") address = method.store.path;
  if (method.scheme == join::kMpiScheme) address = "an address that rank 0 sends";
  Log(LogLevel::kInfo, absl::StrCat("rank ", method.rank, " of ", method.size, " meets the others ",
                                    "at ", address, "; ", method.from));
  absl::StatusOr<OpenedStore> opened = join::OpenStore(method, deadline);
  if (opened.ok() || !method.any_rank_serves) return opened;
  return Annotate(
      opened.status(),
      absl::StrCat("the ranks meet at ", address, " (", method.from, "). If no rank runs ",
                   "there, set MASTER_ADDR to the host of rank 0, or pass ",
                   "init_method mpi:// for MPI to say"));
}

// Opens the store. Fills in the options that the init method or the environment give.
absl::StatusOr<OpenedStore> Open(WorldOptions& options, const Deadline& deadline) {
  if (options.store != nullptr) return OpenedStore{options.store, "", StoreConfig::Role::kClient};
  const std::string url = InitMethodUrl(options);
  const auto is_single = url == "env://" ? SingleProcessReason(options) : std::nullopt;
  if (const std::optional<std::string>& reason = is_single) {
    Log(LogLevel::kInfo, absl::StrCat("this is a world of one rank: ", *reason));
    options.rank = 0;
    options.size = 1;
    SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make("hash", StoreConfig()));
    return OpenedStore{std::move(store), "", StoreConfig::Role::kServer};
  }
  SYNCLINE_ASSIGN_OR_RETURN(InitMethod method,
                            join::ParseInitMethod(url, options.rank, options.size));
  options.rank = method.rank;
  options.size = method.size;
  if (options.group_name.empty()) options.group_name = method.group_name;
  method.group_name = options.group_name;
  method.store.timeout = std::min(options.timeout, kDefaultStoreTimeout);
  SYNCLINE_ASSIGN_OR_RETURN(OpenedStore opened, OpenAndLog(method, deadline));
  if (opened.rank >= 0) options.rank = opened.rank;
  if (opened.size >= 0) options.size = opened.size;
  return opened;
}

}  // namespace

World::World(const WorldOptions& options, std::unique_ptr<join::JoinProtocol> joined)
    : options_(options), joined_(std::move(joined)) {}

World::~World() = default;

absl::StatusOr<std::shared_ptr<World>> World::Init(const WorldOptions& given) {
  WorldOptions options = given;
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  SYNCLINE_RETURN_IF_ERROR(group::ParseBackendSpec(options.backend).status());
  const Deadline deadline(options.timeout);
  SYNCLINE_ASSIGN_OR_RETURN(const OpenedStore opened, Open(options, deadline));
  return Join(options, opened, deadline);
}

absl::StatusOr<std::shared_ptr<World>> World::FromMpi(MpiComm comm, const WorldOptions& options) {
  if (options.store != nullptr || !options.init_method.empty() || options.rank != -1 ||
      options.size != -1) {
    return ArgumentError(
        "a communicator of MPI takes the place of store, init_method, rank and world_size");
  }
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  SYNCLINE_RETURN_IF_ERROR(group::ParseBackendSpec(options.backend).status());
  const Deadline deadline(options.timeout);
  const absl::Duration store_timeout = std::min(options.timeout, kDefaultStoreTimeout);
  SYNCLINE_ASSIGN_OR_RETURN(const OpenedStore opened,
                            join::OpenMpiStore({comm}, store_timeout, deadline));
  WorldOptions complete = options;
  complete.rank = opened.rank;
  complete.size = opened.size;
  return Join(complete, opened, deadline);
}

absl::StatusOr<std::shared_ptr<World>> World::Join(WorldOptions options, const OpenedStore& opened,
                                                   const Deadline& deadline) {
  options.store = opened.store;
  std::shared_ptr<Store> store = opened.store;
  if (!options.group_name.empty()) {
    store = std::make_shared<PrefixStore>(absl::StrCat("world/", options.group_name), store);
  }
  // From here on the ranks meet: everything before is this process's own reading of its options.
  // Ranks may spell one spec in different ways.
  SYNCLINE_ASSIGN_OR_RETURN(const group::Backends backends,
                            group::ParseBackendSpec(options.backend));
  const join::JoinProtocol::Request request = {options.rank, options.size, opened.role,
                                               group::SerializeBackendSpec(backends)};
  SYNCLINE_ASSIGN_OR_RETURN(join::JoinProtocol joined,
                            join::JoinProtocol::Join(store, request, deadline));
  std::shared_ptr<World> world(
      new World(options, std::make_unique<join::JoinProtocol>(std::move(joined))));
  const std::string host =
      opened.host.empty() ? join::HostOf(options.store->address()) : opened.host;
  absl::Status connected = world->Connect(host, deadline);
  if (connected.ok()) return world;
  // All ranks fail to connect, and may try again, with this rank's slot free.
  world->joined_->LeaveAfterFailure();
  return connected;
}

int World::local_rank() const {
  const std::vector<Peer>& peers = joined_->peers();
  const auto is_here = [&](const Peer& peer) { return peer.identity == peers[rank()].identity; };
  return static_cast<int>(std::count_if(peers.begin(), peers.begin() + rank(), is_here));
}

absl::Status World::Connect(const std::string& store_host, const Deadline& deadline) {
  // Every generation has keys of its own, so nothing of an earlier world is read here.
  PrefixStore addresses("addresses", joined_->store());
  SYNCLINE_ASSIGN_OR_RETURN(
      local_address_,
      join::HostAddress(addresses, joined_->peers(), joined_->rank(), store_host, deadline));
  more_addresses_ = join::MoreAddresses(local_address_);
  ProcessGroup::Options group = GroupOptions("default");
  group.rank = joined_->rank();
  group.size = options_.size;
  group.ranks.resize(options_.size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.peers = joined_->peers();
  group.connect_timeout = deadline.Remaining();
  SYNCLINE_ASSIGN_OR_RETURN(group_, ProcessGroup::Create(group));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::NewGroup(const std::vector<int>& ranks,
                                                              std::optional<std::string> backend,
                                                              ProcessGroup::Timeout timeout,
                                                              std::optional<Device> device_id) {
  const std::string backend_name = backend.value_or(options_.backend);
  const absl::Duration limit = timeout.value_or(options_.timeout);
  SYNCLINE_RETURN_IF_ERROR(CheckGroupOptions(backend_name, limit, device_id));
  SYNCLINE_ASSIGN_OR_RETURN(const int group_rank, GroupRankIn(ranks));
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++groups_made_;  // Counts calls on all ranks, members or not: equal on all.
  }
  const std::string name = absl::StrCat("group", number);
  NewGroupCall call = {absl::StrCat("new_group #", number), name,
                       absl::StrCat(name, "[", absl::StrJoin(ranks, ","), "]"), device_id};
  SYNCLINE_ASSIGN_OR_RETURN(call.splits, IsSplitOff(backend_name));
  return MakeGroup(call, ranks, group_rank, backend_name, limit);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::NewLocalGroup(
    const std::vector<int>& ranks, std::optional<std::string> backend,
    ProcessGroup::Timeout timeout, std::optional<Device> device_id) {
  const std::string backend_name = backend.value_or(options_.backend);
  const absl::Duration limit = timeout.value_or(options_.timeout);
  SYNCLINE_RETURN_IF_ERROR(CheckGroupOptions(backend_name, limit, device_id));
  SYNCLINE_ASSIGN_OR_RETURN(const int group_rank, GroupRankIn(ranks));
  const std::string members =
      absl::StrJoin(std::set<int>(ranks.begin(), ranks.end()), ",");  // The same for any order.
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++local_groups_made_[members];  // Counts calls for these members alone: equal on all.
  }
  const std::string name = absl::StrCat("local", number);
  return MakeGroup({absl::StrCat("new_group #", number, " of ranks ", members, " alone"),
                    absl::StrCat(name, "[", members, "]"),
                    absl::StrCat(name, "[", absl::StrJoin(ranks, ","), "]"), device_id},
                   ranks, group_rank, backend_name, limit);
}

void World::Close(absl::Duration timeout) {
  if (!group_->CheckProcess().ok())
    return;  // A forked child: group, store and locks are its parent's.
  const Deadline deadline(timeout);
  group_->Close(timeout);
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(has_left_, true)) return;
  }
  joined_->Leave(deadline).IgnoreError();  // Lets the rank join again.
}

absl::Status World::CheckGroupOptions(const std::string& backend, absl::Duration timeout,
                                      const std::optional<Device>& device_id) const {
  SYNCLINE_RETURN_IF_ERROR(group_->CheckProcess());
  SYNCLINE_RETURN_IF_ERROR(group::ParseBackendSpec(backend).status());
  SYNCLINE_RETURN_IF_ERROR(CheckDeviceId(device_id));
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat("timeout must be positive, not ", absl::FormatDuration(timeout)));
}

absl::StatusOr<int> World::GroupRankIn(const std::vector<int>& ranks) const {
  if (ranks.empty()) return ArgumentError("a group needs at least one rank");
  std::set<int> seen;
  int group_rank = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size()) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is not in the world of ", size(),
                                        ": ranks go from 0 to ", size() - 1));
    }
    if (!seen.insert(ranks[i]).second) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is listed twice"));
    }
    if (ranks[i] == rank()) group_rank = static_cast<int>(i);
  }
  return group_rank;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::MakeGroup(const NewGroupCall& call,
                                                               const std::vector<int>& ranks,
                                                               int group_rank,
                                                               const std::string& backend,
                                                               absl::Duration timeout) const {
  if (group_rank < 0 && !call.splits) return std::shared_ptr<ProcessGroup>();
  const Deadline deadline(timeout);
  SYNCLINE_ASSIGN_OR_RETURN(const group::Backends backends, group::ParseBackendSpec(backend));
  std::vector<int> callers = ranks;
  if (call.splits) {
    callers.resize(static_cast<size_t>(size()));
    std::iota(callers.begin(), callers.end(), 0);
  }
  // Without this check, members that disagree would wait for each other in different backends until
  // the timeout, and none of them could say why.
  const store::CheckSameOptions check = {
      call.name,
      absl::StrCat("ranks [", absl::StrJoin(ranks, ","), "] on backend ",
                   group::SerializeBackendSpec(backends)),
      rank(), callers, base::CheckRanksAlive(joined_->peers(), rank(), callers)};
  PrefixStore store(absl::StrCat("new/", call.store_prefix), joined_->store());
  SYNCLINE_RETURN_IF_ERROR(store::CheckSameOnAllRanks(store, check, deadline));
  ProcessGroup::Options group = GroupOptions(call.group);
  if (call.device_id.has_value()) group.device_id = call.device_id;
  if (call.splits) {
    const SplitPlace place =
        group_rank < 0 ? SplitPlace() : SplitPlace{/*color=*/0, /*key=*/group_rank};
    SYNCLINE_ASSIGN_OR_RETURN(group.communicator,
                              group::ChildCommunicators::Make(*group_, place, deadline));
  }
  if (group_rank < 0) return std::shared_ptr<ProcessGroup>();
  group.rank = group_rank;
  group.size = static_cast<int>(ranks.size());
  group.ranks = ranks;
  for (int member : ranks) group.peers.push_back(joined_->peers()[member]);
  group.backend = backend;
  group.timeout = timeout;
  group.connect_timeout = deadline.Remaining();
  return ProcessGroup::Create(group);
}

absl::StatusOr<bool> World::IsSplitOff(const std::string& backend) const {
  SYNCLINE_ASSIGN_OR_RETURN(const group::Backends own, group::ParseBackendSpec(options_.backend));
  SYNCLINE_ASSIGN_OR_RETURN(const group::Backends asked, group::ParseBackendSpec(backend));
  return own == asked && group::ChildCommunicators::CanMake(*group_);
}

ProcessGroup::Options World::GroupOptions(absl::string_view name) const {
  ProcessGroup::Options group;
  group.backend = options_.backend;
  group.store = std::make_shared<PrefixStore>(absl::StrCat("group/", name), joined_->store());
  group.timeout = options_.timeout;
  group.name = std::string(name);
  group.local_address = local_address_;
  group.more_addresses = more_addresses_;
  group.device_id = options_.device_id;
  return group;
}

}  // namespace syncline
