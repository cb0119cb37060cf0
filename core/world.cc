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

std::string MemberKey(int64_t rank) { return absl::StrCat("member/", rank); }

std::vector<std::string> MemberKeys(int64_t size) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < size; ++rank) keys.push_back(MemberKey(rank));
  return keys;
}

// Says which ranks are there and which are not, as far as the store still tells.
absl::Status NotAllJoined(Store& store, int64_t size, absl::Duration timeout) {
  std::vector<std::string> absent;
  std::vector<std::string> present;
  for (int64_t rank = 0; rank < size; ++rank) {
    const std::string key = MemberKey(rank);
    auto is_there = store.Check({key});
    if (!is_there.ok()) return Annotate(is_there.status(), "while waiting for all ranks to join");
    if (!*is_there) {
      absent.push_back(absl::StrCat(rank));
      continue;
    }
    auto text = store.Get(key, absl::Seconds(1));
    auto peer = text.ok() ? Peer::Parse(*text) : text.status();
    present.push_back(
        absl::StrCat(rank, peer.ok() ? absl::StrCat(" (", peer->ToString(), ")") : ""));
  }
  return TimeoutError(absl::StrCat(
      "rank ", absl::StrJoin(absent, ", "), " of ", size, " did not join within ",
      absl::FormatDuration(timeout), "; present: ", absl::StrJoin(present, ", "),
      ". Were all ranks started, with the same world_size and store (", store.ToString(), ")?"));
}

// Takes this rank's place and returns all members, in the order of their ranks.
absl::StatusOr<std::vector<Peer>> Join(Store& store, int64_t rank, int64_t size,
                                       const Deadline& deadline) {
  const Peer self = ThisPeer();
  SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store.CompareSet("size", "", absl::StrCat(size)));
  if (agreed.value != absl::StrCat(size)) {
    return ArgumentError(absl::StrCat("rank ", rank, " (", self.ToString(), ") says world_size is ",
                                      size, ", but another rank has said ", agreed.value,
                                      ": start all ranks with the same world_size"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto place, store.CompareSet(MemberKey(rank), "", self.Serialize()));
  if (!place.swapped) {
    SYNCLINE_ASSIGN_OR_RETURN(Peer other, Peer::Parse(place.value));
    return ArgumentError(absl::StrCat("rank ", rank, " is taken by ", other.ToString(),
                                      ": give each process its own rank"));
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
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, OpenStore(options, store_host));
  if (!options.group_name.empty()) {
    store = std::make_shared<PrefixStore>(absl::StrCat("world/", options.group_name), store);
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Peer> members,
                            Join(*store, options.rank, options.size, deadline));
  SYNCLINE_ASSIGN_OR_RETURN(std::string address, LocalAddress(members, store_host));
  std::shared_ptr<World> world(new World(options, store, std::move(address)));
  SYNCLINE_ASSIGN_OR_RETURN(
      world->group_,
      world->MakeGroup("default", static_cast<int>(options.rank), static_cast<int>(options.size),
                       options.backend, options.timeout));
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
  return MakeGroup(absl::StrCat("group", number, "[", absl::StrJoin(ranks, ","), "]"), own,
                   static_cast<int>(ranks.size()), backend.value_or(options_.backend),
                   timeout.value_or(options_.timeout));
}

void World::Close(absl::Duration timeout) { group_->Close(timeout); }

absl::StatusOr<std::shared_ptr<ProcessGroup>> World::MakeGroup(absl::string_view name, int rank,
                                                               int size, absl::string_view backend,
                                                               absl::Duration timeout) {
  ProcessGroup::Options options;
  options.backend = std::string(backend);
  options.store = std::make_shared<PrefixStore>(absl::StrCat("group/", name), store_);
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  options.name = std::string(name);
  options.local_address = local_address_;
  return ProcessGroup::Create(options);
}

}  // namespace syncline
