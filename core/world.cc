#include "core/world.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/host.h"
#include "core/init_method.h"
#include "core/prefix_store.h"
#include "core/status.h"

namespace syncline {
namespace {

// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);

std::string MemberKey(int64_t rank) { return absl::StrCat("member/", rank); }
std::string LeftKey(int64_t rank) { return absl::StrCat("left/", rank); }

std::vector<std::string> MemberKeys(int64_t size) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < size; ++rank) keys.push_back(MemberKey(rank));
  return keys;
}

// Says which ranks are there and which are not, as far as the store still tells.
absl::Status NotAllJoined(Store& store, int64_t size, absl::Duration timeout) {
  const std::string late =
      absl::StrCat("not all ranks joined within ", absl::FormatDuration(timeout));
  // "size" was set by this rank: a store that cannot tell it does not answer at all.
  absl::Status answers = store.Wait({"size"}, kPatienceWithTheStore);
  if (!answers.ok()) return Annotate(answers, late);
  auto there = store.Keys("member/");
  if (!there.ok()) return Annotate(there.status(), late);
  const std::set<std::string> members(there->begin(), there->end());
  std::vector<std::string> absent;
  std::vector<std::string> present;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (members.count(MemberKey(rank)) == 0) {
      absent.push_back(absl::StrCat(rank));
      continue;
    }
    auto text = store.Get(MemberKey(rank), kPatienceWithTheStore);
    auto peer = text.ok() ? Peer::Parse(*text) : text.status();
    present.push_back(
        absl::StrCat(rank, peer.ok() ? absl::StrCat(" (", peer->ToString(), ")") : ""));
  }
  if (absent.empty()) return TimeoutError(absl::StrCat(late, "; the last came just after"));
  return TimeoutError(absl::StrCat(
      "rank ", absl::StrJoin(absent, ", "), " of ", size, " did not join within ",
      absl::FormatDuration(timeout), "; present: ", absl::StrJoin(present, ", "),
      ". Were all ranks started, with the same world_size and store (", store.ToString(), ")?"));
}

std::string RoundPrefix(int64_t round) { return absl::StrCat("round/", round); }

// A store may outlive several worlds in a row. Each rank counts how often it has joined, so that
// ranks which join equally often meet in a part of the store that no earlier world has touched.
absl::StatusOr<std::shared_ptr<Store>> EnterRound(std::shared_ptr<Store> store, int64_t rank) {
  const std::string counter = absl::StrCat("joined/", rank);
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t round, store->Add(counter, 1));
  if (round > 1) {
    PrefixStore last(RoundPrefix(round - 1), store);
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_left, last.Check({LeftKey(rank)}));
    if (!has_left) {
      SYNCLINE_RETURN_IF_ERROR(store->Add(counter, -1).status());
      auto text = last.Get(MemberKey(rank), kPatienceWithTheStore);
      auto other = text.ok() ? Peer::Parse(*text) : text.status();
      return ArgumentError(absl::StrCat(
          "rank ", rank, " is taken by ", other.ok() ? other->ToString() : "another process",
          ": give each process its own rank, or use a new store if that process is gone"));
    }
  }
  return std::make_shared<PrefixStore>(RoundPrefix(round), std::move(store));
}

// Takes this rank's place and returns all members, in the order of their ranks.
absl::StatusOr<std::vector<Peer>> Join(Store& store, int64_t rank, int64_t size,
                                       const Deadline& deadline) {
  const Peer self = ThisPeer();
  SYNCLINE_RETURN_IF_ERROR(store.Set(MemberKey(rank), self.Serialize()));
  SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store.CompareSet("size", "", absl::StrCat(size)));
  if (agreed.value != absl::StrCat(size)) {
    return ArgumentError(absl::StrCat("rank ", rank, " (", self.ToString(), ") says world_size is ",
                                      size, ", but another rank has said ", agreed.value,
                                      ": start all ranks with the same world_size"));
  }
  auto texts = store.MultiGet(MemberKeys(size), deadline.Remaining());
  if (absl::IsDeadlineExceeded(texts.status())) {
    return NotAllJoined(store, size, deadline.timeout());
  }
  SYNCLINE_RETURN_IF_ERROR(texts.status());
  std::vector<Peer> members;
  for (const std::string& text : *texts) {
    SYNCLINE_ASSIGN_OR_RETURN(Peer member, Peer::Parse(text));
    members.push_back(std::move(member));
  }
  return members;
}

// Where peers reach this host: loopback if they are all on it, else the interface that leads to
// the store's host or, where the store has none, the address of this host's name.
absl::StatusOr<std::string> LocalAddress(const std::vector<Peer>& members,
                                         absl::string_view store_host) {
  std::set<std::string> hosts;
  for (const Peer& member : members) hosts.insert(member.identity);
  if (hosts.size() == 1) return std::string("127.0.0.1");
  return AddressTowards(store_host.empty() ? absl::string_view(ThisPeer().host) : store_host);
}

absl::StatusOr<std::shared_ptr<Store>> OpenStore(WorldOptions& options, std::string& host) {
  if (options.store != nullptr) {
    if (!options.init_method.empty()) {
      return ArgumentError("give either store or init_method, not both");
    }
    if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
      return ArgumentError(
          absl::StrCat("with a store, rank and world_size are needed, 0 <= rank < "
                       "world_size; got rank ",
                       options.rank, ", world_size ", options.size));
    }
    return options.store;
  }
  const std::string url = options.init_method.empty() ? "env://" : options.init_method;
  SYNCLINE_ASSIGN_OR_RETURN(InitMethod method, ParseInitMethod(url, options.rank, options.size));
  options.rank = method.rank;
  options.size = method.size;
  host = method.store.host;
  method.store.timeout = std::min(options.timeout, kDefaultStoreTimeout);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store,
                            StoreRegistry::Make(method.scheme, method.store));
  if (method.prefix.empty()) return store;
  return std::make_shared<PrefixStore>(method.prefix, std::move(store));
}

}  // namespace

absl::StatusOr<std::shared_ptr<World>> World::Init(const WorldOptions& given) {
  WorldOptions options = given;
  if (options.timeout <= absl::ZeroDuration()) {
    return ArgumentError(
        absl::StrCat("timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  if (!BackendRegistry::Has(options.backend)) {
    return ArgumentError(absl::StrCat("unknown backend '", options.backend, "'; choose one of: ",
                                      absl::StrJoin(BackendRegistry::Names(), ", ")));
  }
  const Deadline deadline(options.timeout);
  std::string store_host;
  SYNCLINE_ASSIGN_OR_RETURN(options.store, OpenStore(options, store_host));
  std::shared_ptr<Store> store = options.store;
  if (!options.group_name.empty()) {
    store = std::make_shared<PrefixStore>(absl::StrCat("world/", options.group_name), store);
  }
  SYNCLINE_ASSIGN_OR_RETURN(store, EnterRound(std::move(store), options.rank));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Peer> members,
                            Join(*store, options.rank, options.size, deadline));
  SYNCLINE_ASSIGN_OR_RETURN(std::string address, LocalAddress(members, store_host));
  std::shared_ptr<World> world(new World(options, store, std::move(address)));
  ProcessGroup::Options group = world->GroupOptions("default");
  group.rank = static_cast<int>(options.rank);
  group.size = static_cast<int>(options.size);
  group.connect_timeout = deadline.Remaining();
  SYNCLINE_ASSIGN_OR_RETURN(world->group_, ProcessGroup::Create(group));
  return world;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::NewGroup(const std::vector<int64_t>& ranks,
                                                              std::optional<std::string> backend,
                                                              ProcessGroup::Timeout timeout) {
  if (ranks.empty()) return ArgumentError("a group needs at least one rank");
  std::set<int64_t> seen;
  int own = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size()) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is not in the world of ", size(),
                                        ": ranks go from 0 to ", size() - 1));
    }
    if (!seen.insert(ranks[i]).second) {
      return ArgumentError(absl::StrCat("rank ", ranks[i], " is listed twice"));
    }
    if (ranks[i] == rank()) own = static_cast<int>(i);
  }
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++groups_made_;  // Counted on all ranks, members or not: the names must agree.
  }
  if (own < 0) return std::shared_ptr<ProcessGroup>();
  ProcessGroup::Options group =
      GroupOptions(absl::StrCat("group", number, "[", absl::StrJoin(ranks, ","), "]"));
  group.rank = own;
  group.size = static_cast<int>(ranks.size());
  if (backend.has_value()) group.backend = *backend;
  if (timeout.has_value()) group.timeout = *timeout;
  return ProcessGroup::Create(group);
}

void World::Close(absl::Duration timeout) {
  const bool was_usable = group_->status().ok();
  group_->Close(timeout);
  // Lets the rank join again. Without a group that worked, the store may not answer either.
  if (was_usable) round_store_->Set(LeftKey(rank()), "").IgnoreError();
}

ProcessGroup::Options World::GroupOptions(absl::string_view name) const {
  ProcessGroup::Options group;
  group.backend = options_.backend;
  group.store = std::make_shared<PrefixStore>(absl::StrCat("group/", name), round_store_);
  group.timeout = options_.timeout;
  group.name = std::string(name);
  group.local_address = local_address_;
  return group;
}

}  // namespace syncline
