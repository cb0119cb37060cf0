#include "core/join/world.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/env.h"
#include "core/base/interrupt.h"
#include "core/base/liveness.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/group/backend_spec.h"
#include "core/join/cluster.h"
#include "core/join/host_address.h"
#include "core/join/init_method.h"
#include "core/join/open_store.h"
#include "core/store/agreement.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

// For what a store that is alive does at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);

absl::Status CheckOptions(const WorldOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
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

// Why this process is the only rank, for people; nothing if it may have peers.
std::optional<std::string> WhyAlone(const WorldOptions& options) {
  const bool asks_environment = options.init_method.empty() || options.init_method == "env://";
  if (options.store != nullptr || !asks_environment) return std::nullopt;
  if (options.rank == 0 && options.size == 1) return "rank 0 and world_size 1 were passed";
  if (!options.init_method.empty() || HasLauncher() || options.rank >= 0) return std::nullopt;
  if (options.size >= 0 && options.size != 1) return std::nullopt;
  const std::optional<ClusterTask> task = DetectTask(GetEnv);
  if (task.has_value() && (task->size > 1 || !task->defect.empty())) return std::nullopt;
  return DescribeAlone(GetEnv);
}

// Says where the ranks meet, if that is nowhere but in the environment.
absl::StatusOr<OpenedStore> OpenAndSay(const InitMethod& method, const Deadline& deadline) {
  if (method.from.empty()) return OpenStore(method, deadline);
  const std::string place = method.scheme == "file"
                                ? method.store.path
                                : absl::StrCat(method.store.host, ", port ", method.store.port);
  Log(LogLevel::kInfo, absl::StrCat("rank ", method.rank, " of ", method.size, " meets the others ",
                                    "at ", place, "; ", method.from));
  absl::StatusOr<OpenedStore> opened = OpenStore(method, deadline);
  if (opened.ok() || !method.any_rank_serves) return opened;
  return Annotate(opened.status(), absl::StrCat("the ranks meet at ", place, " (", method.from,
                                                "). If no rank runs ",
                                                "there, set MASTER_ADDR to the host of rank 0"));
}

// Opens the store, and fills in what the init method or the environment says.
absl::StatusOr<OpenedStore> Open(WorldOptions& options, const Deadline& deadline) {
  if (options.store != nullptr) return OpenedStore{options.store, "", OpenedStore::Part::kGuest};
  if (const std::optional<std::string> reason = WhyAlone(options)) {
    Log(LogLevel::kInfo, absl::StrCat("this is a world of one rank: ", *reason));
    options.rank = 0;
    options.size = 1;
    SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make("hash", StoreConfig()));
    return OpenedStore{std::move(store), "", OpenedStore::Part::kHost};
  }
  const std::string url = options.init_method.empty() ? "env://" : options.init_method;
  SYNCLINE_ASSIGN_OR_RETURN(InitMethod method, ParseInitMethod(url, options.rank, options.size));
  options.rank = method.rank;
  options.size = method.size;
  if (options.group_name.empty()) options.group_name = method.group_name;
  method.group_name = options.group_name;
  method.store.timeout = std::min(options.timeout, kDefaultStoreTimeout);
  return OpenAndSay(method, deadline);
}

}  // namespace

absl::StatusOr<std::shared_ptr<World>> World::Init(const WorldOptions& given) {
  WorldOptions options = given;
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  SYNCLINE_RETURN_IF_ERROR(ParseBackendSpec(options.backend).status());
  const Deadline deadline(options.timeout);
  SYNCLINE_ASSIGN_OR_RETURN(const OpenedStore opened, Open(options, deadline));
  options.store = opened.store;
  std::shared_ptr<Store> store = opened.store;
  if (!options.group_name.empty()) {
    store = std::make_shared<PrefixStore>(absl::StrCat("world/", options.group_name), store);
  }
  const Membership::Request request = {options.rank, options.size, opened.part};
  SYNCLINE_ASSIGN_OR_RETURN(Membership membership, Membership::Join(store, request, deadline));
  std::shared_ptr<World> world(new World(options, std::move(membership)));
  const std::string host = opened.host.empty() ? HostOf(options.store->address()) : opened.host;
  absl::Status connected = world->Connect(host, deadline);
  if (connected.ok()) return world;
  const Uninterruptible leaving;
  world->membership_.Leave(Deadline(kPatienceWithTheStore)).IgnoreError();  // To be tried again.
  return connected;
}

int64_t World::local_rank() const {
  const std::vector<Peer>& peers = membership_.peers();
  const auto is_here = [&](const Peer& peer) { return peer.identity == peers[rank()].identity; };
  return std::count_if(peers.begin(), peers.begin() + rank(), is_here);
}

absl::Status World::Connect(const std::string& store_host, const Deadline& deadline) {
  PrefixStore addresses("addresses", membership_.store());
  SYNCLINE_ASSIGN_OR_RETURN(local_address_, HostAddress(addresses, membership_.peers(),
                                                        membership_.rank(), store_host, deadline));
  ProcessGroup::Options group = GroupOptions("default");
  group.rank = static_cast<int>(membership_.rank());
  group.size = static_cast<int>(options_.size);
  group.ranks.resize(options_.size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.peers = membership_.peers();
  group.connect_timeout = deadline.Remaining();
  SYNCLINE_ASSIGN_OR_RETURN(group_, ProcessGroup::Create(group));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::NewGroup(const std::vector<int64_t>& ranks,
                                                              std::optional<std::string> backend,
                                                              ProcessGroup::Timeout timeout) {
  const std::string backend_name = backend.value_or(options_.backend);
  const absl::Duration limit = timeout.value_or(options_.timeout);
  SYNCLINE_RETURN_IF_ERROR(CheckGroupOptions(backend_name, limit));
  SYNCLINE_ASSIGN_OR_RETURN(const int place, PlaceIn(ranks));
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++groups_made_;  // Counted on all ranks, members or not: the names must agree.
  }
  const std::string name = absl::StrCat("group", number);
  return MakeGroup({absl::StrCat("new_group #", number), name,
                    absl::StrCat(name, "[", absl::StrJoin(ranks, ","), "]")},
                   ranks, place, backend_name, limit);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::NewLocalGroup(
    const std::vector<int64_t>& ranks, std::optional<std::string> backend,
    ProcessGroup::Timeout timeout) {
  const std::string backend_name = backend.value_or(options_.backend);
  const absl::Duration limit = timeout.value_or(options_.timeout);
  SYNCLINE_RETURN_IF_ERROR(CheckGroupOptions(backend_name, limit));
  SYNCLINE_ASSIGN_OR_RETURN(const int place, PlaceIn(ranks));
  const std::string members =
      absl::StrJoin(std::set<int64_t>(ranks.begin(), ranks.end()), ",");  // In whatever order.
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++local_groups_made_[members];  // Equal on the members, whatever others they are in.
  }
  const std::string name = absl::StrCat("local", number);
  return MakeGroup({absl::StrCat("new_group #", number, " of ranks ", members, " alone"),
                    absl::StrCat(name, "[", members, "]"),
                    absl::StrCat(name, "[", absl::StrJoin(ranks, ","), "]")},
                   ranks, place, backend_name, limit);
}

void World::Close(absl::Duration timeout) {
  if (!group_->CheckProcess().ok()) return;  // Group, store and locks are the parent's.
  const Deadline deadline(timeout);
  group_->Close(timeout);
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(has_left_, true)) return;
  }
  membership_.Leave(deadline).IgnoreError();  // Lets the rank join again.
}

absl::Status World::CheckGroupOptions(const std::string& backend, absl::Duration timeout) const {
  SYNCLINE_RETURN_IF_ERROR(group_->CheckProcess());
  SYNCLINE_RETURN_IF_ERROR(ParseBackendSpec(backend).status());
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat("timeout must be positive, not ", absl::FormatDuration(timeout)));
}

absl::StatusOr<int> World::PlaceIn(const std::vector<int64_t>& ranks) const {
  if (ranks.empty()) return ArgumentError("a group needs at least one rank");
  std::set<int64_t> seen;
  int place = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size()) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is not in the world of ", size(),
                                        ": ranks go from 0 to ", size() - 1));
    }
    if (!seen.insert(ranks[i]).second) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is listed twice"));
    }
    if (ranks[i] == rank()) place = static_cast<int>(i);
  }
  return place;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::MakeGroup(const NewGroupCall& call,
                                                               const std::vector<int64_t>& ranks,
                                                               int place,
                                                               const std::string& backend,
                                                               absl::Duration timeout) const {
  if (place < 0) return std::shared_ptr<ProcessGroup>();
  const Deadline deadline(timeout);
  const Proposal proposal = {call.name,
                             absl::StrCat("ranks [", absl::StrJoin(ranks, ","), "] on backend ",
                                          absl::AsciiStrToLower(backend)),
                             rank(), ranks, CheckThatRanksLive(membership_.peers(), rank(), ranks)};
  PrefixStore meeting(absl::StrCat("new/", call.meeting), membership_.store());
  SYNCLINE_RETURN_IF_ERROR(Agree(meeting, proposal, deadline));
  ProcessGroup::Options group = GroupOptions(call.group);
  group.rank = place;
  group.size = static_cast<int>(ranks.size());
  group.ranks = ranks;
  for (int64_t member : ranks) group.peers.push_back(membership_.peers()[member]);
  group.backend = backend;
  group.timeout = timeout;
  group.connect_timeout = deadline.Remaining();
  return ProcessGroup::Create(group);
}

ProcessGroup::Options World::GroupOptions(absl::string_view name) const {
  ProcessGroup::Options group;
  group.backend = options_.backend;
  group.store = std::make_shared<PrefixStore>(absl::StrCat("group/", name), membership_.store());
  group.timeout = options_.timeout;
  group.name = std::string(name);
  group.local_address = local_address_;
  return group;
}

}  // namespace syncline
