#include "core/join/open_store.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/host.h"
#include "core/base/status.h"
#include "core/join/host_address.h"
#include "core/join/multicast.h"
#include "core/join/serving_turn.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

using Part = OpenedStore::Part;

// A client that is refused says so before this is over; who only hears nothing may host by then.
constexpr absl::Duration kTryFor = absl::Seconds(1);
// For what a store that is alive does at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);
// Set by a host that has no rank.
constexpr absl::string_view kHasAutomaticHost = "automatic host";

// With `for_other_hosts`, a name that leads to loopback is this host's own, as in the /etc/hosts of
// many systems; other hosts connect to whichever address they know by that name.
absl::StatusOr<std::shared_ptr<Store>> Serve(StoreConfig config, bool for_other_hosts) {
  config.role = StoreConfig::Role::kServer;
  // A name may stand for several addresses, each of which another process could bind.
  SYNCLINE_ASSIGN_OR_RETURN(
      config.host,
      FirstAddress(config.host, Deadline(config.connect_timeout.value_or(config.timeout))));
  if (for_other_hosts && IsLoopbackAddress(config.host)) config.host = "0.0.0.0";
  SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make("tcp", config));
  SYNCLINE_RETURN_IF_ERROR(store->Set(kHasAutomaticHost, ""));
  return store;
}

// Of a process without a rank, or of one whose rank does not say whether it is on the store's host.
absl::StatusOr<OpenedStore> ServeOrConnect(StoreConfig config, bool for_other_hosts,
                                           const Deadline& deadline) {
  const std::string host = config.host;
  absl::StatusOr<std::shared_ptr<Store>> served = NetworkError("another tried to");
  for (bool is_first_try = true;; is_first_try = false) {
    {
      const ServingTurn turn(config.host, config.port);
      // Later, something may hold the turn and never serve.
      if (turn.is_mine() || !is_first_try) served = Serve(config, for_other_hosts);
    }
    if (served.ok()) return OpenedStore{*std::move(served), host, Part::kHost};
    const Deadline attempt(std::min(kTryFor, deadline.Remaining()));
    config.connect_timeout = attempt.timeout();
    auto connected = StoreRegistry::Make("tcp", config);
    if (connected.ok()) return OpenedStore{*std::move(connected), host, Part::kGuest};
    if (!attempt.Expired()) return connected.status();  // An answer, if not a welcome.
    if (deadline.Expired()) {
      return Annotate(connected.status(),
                      absl::StrCat("this process could not host the store either (",
                                   served.status().message(), ")"));
    }
  }
}

// Of rank 0. Another may host only if it has no rank: two jobs that were given one address must
// not become one.
absl::StatusOr<OpenedStore> ServeOrJoinAutomaticHost(const StoreConfig& config) {
  absl::StatusOr<std::shared_ptr<Store>> served;
  bool has_tried = false;
  {
    const ServingTurn turn(config.host, config.port);
    if (turn.is_mine()) {
      served = StoreRegistry::Make("tcp", config);
      has_tried = true;
    }
  }
  if (served.ok()) return OpenedStore{*std::move(served), config.host, Part::kHost};
  StoreConfig guest = config;
  guest.role = StoreConfig::Role::kClient;
  guest.connect_timeout = kPatienceWithTheStore;
  auto joined = StoreRegistry::Make("tcp", guest);
  if (joined.ok() &&
      (*joined)->Wait({std::string(kHasAutomaticHost)}, kPatienceWithTheStore).ok()) {
    return OpenedStore{*std::move(joined), config.host, Part::kGuest};
  }
  if (!has_tried) served = StoreRegistry::Make("tcp", config);  // Nobody has served after all.
  if (!served.ok()) return served.status();
  return OpenedStore{*std::move(served), config.host, Part::kHost};
}

absl::StatusOr<OpenedStore> OpenByMulticast(const InitMethod& method, const Deadline& deadline) {
  MulticastOptions meeting;
  meeting.group = method.store.host;
  meeting.port = method.store.port;
  meeting.job = method.group_name;
  meeting.rank = method.rank;
  meeting.size = method.size;
  meeting.store_timeout = method.store.timeout;
  SYNCLINE_ASSIGN_OR_RETURN(meeting.secret, JobSecret());
  return MeetByMulticast(meeting, deadline);
}

absl::StatusOr<OpenedStore> Open(const InitMethod& method, const Deadline& deadline) {
  if (method.scheme == kMulticastScheme) return OpenByMulticast(method, deadline);
  if (method.scheme == "tcp" && (method.rank < 0 || method.any_rank_serves)) {
    return ServeOrConnect(method.store, method.any_rank_serves, deadline);
  }
  if (method.scheme == "tcp" && method.rank == 0 &&
      method.store.role == StoreConfig::Role::kServer) {
    return ServeOrJoinAutomaticHost(method.store);
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make(method.scheme, method.store));
  return OpenedStore{std::move(store), method.store.host, Part::kGuest};
}

}  // namespace

absl::StatusOr<OpenedStore> OpenStore(const InitMethod& method, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(OpenedStore opened, Open(method, deadline));
  if (!method.prefix.empty()) {
    opened.store = std::make_shared<PrefixStore>(method.prefix, std::move(opened.store));
  }
  return opened;
}

}  // namespace syncline
