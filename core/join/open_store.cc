#include "core/join/open_store.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/host.h"
#include "core/join/host_address.h"
#include "core/join/listen_lock.h"
#include "core/join/mpi_store.h"
#include "core/join/multicast_discovery.h"
#include "core/join/torchrun_store.h"
#include "core/tls/settings.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using Role = StoreConfig::Role;

// How long one attempt to connect lasts. A client that the server refuses hears so earlier; one
// that hears nothing for so long tries to host next.
constexpr absl::Duration kAttemptTimeout = absl::Seconds(1);
// The key that a host without a rank sets.
constexpr absl::string_view kHasAutomaticHost = "automatic host";

// Hosts the store. With `for_other_hosts` it listens on all addresses if the name leads to
// loopback: many systems' /etc/hosts maps a host's own name so, and other hosts connect to
// whichever address they know by that name.
absl::StatusOr<std::shared_ptr<Store>> Serve(StoreConfig config, bool for_other_hosts) {
  config.role = Role::kServer;
  // A name may stand for several addresses, each of which another process could bind.
  SYNCLINE_ASSIGN_OR_RETURN(
      config.host,
      base::FirstAddress(config.host, Deadline(config.connect_timeout.value_or(config.timeout))));
  if (for_other_hosts && IsLoopbackAddress(config.host)) config.host = "0.0.0.0";
  SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make("tcp", config));
  SYNCLINE_RETURN_IF_ERROR(store->Set(kHasAutomaticHost, ""));
  return store;
}

// For a process without a rank, or one whose rank does not say whether it is on the store's host.
absl::StatusOr<OpenedStore> ServeOrConnect(StoreConfig config, bool for_other_hosts,
                                           const Deadline& deadline) {
  const std::string host = config.host;
  absl::StatusOr<std::shared_ptr<Store>> served = NetworkError("another tried to");
  for (bool is_first_try = true;; is_first_try = false) {
    {
      const ListenLock lock(config.host, config.port);
      // Only the first try respects the lock: its holder might never serve.
      if (lock.is_held() || !is_first_try) served = Serve(config, for_other_hosts);
    }
    if (served.ok()) return OpenedStore{*std::move(served), host, Role::kServer};
    const Deadline attempt(std::min(kAttemptTimeout, deadline.Remaining()));
    config.connect_timeout = attempt.timeout();
    auto connected = StoreRegistry::Make("tcp", config);
    if (connected.ok()) return OpenedStore{*std::move(connected), host, Role::kClient};
    if (!attempt.Expired()) return connected.status();  // Refused by a server.
    if (deadline.Expired()) {
      return Annotate(connected.status(),
                      absl::StrCat("this process could not host the store either (",
                                   served.status().message(), ")"));
    }
  }
}

// For rank 0. It joins a store that another process hosts only if that host has no rank: two jobs
// that were given one address must not become one.
absl::StatusOr<OpenedStore> ServeOrJoinAutomaticHost(const StoreConfig& config) {
  absl::StatusOr<std::shared_ptr<Store>> served;
  bool has_tried = false;
  {
    const ListenLock lock(config.host, config.port);
    if (lock.is_held()) {
      served = StoreRegistry::Make("tcp", config);
      has_tried = true;
    }
  }
  if (served.ok()) return OpenedStore{*std::move(served), config.host, Role::kServer};
  StoreConfig client = config;
  client.role = Role::kClient;
  client.connect_timeout = kStoreProbeTimeout;
  auto joined = StoreRegistry::Make("tcp", client);
  if (joined.ok() && (*joined)->Wait({std::string(kHasAutomaticHost)}, kStoreProbeTimeout).ok()) {
    return OpenedStore{*std::move(joined), config.host, Role::kClient};
  }
  if (!has_tried) served = StoreRegistry::Make("tcp", config);  // Nobody has served after all.
  if (!served.ok()) return served.status();
  return OpenedStore{*std::move(served), config.host, Role::kServer};
}

absl::StatusOr<OpenedStore> OpenByMulticast(const InitMethod& method, const Deadline& deadline) {
  MulticastOptions options;
  options.group = method.store.host;
  options.port = method.store.port;
  options.job = method.group_name;
  options.rank = method.rank;
  options.size = method.size;
  options.store_timeout = method.store.timeout;
  SYNCLINE_ASSIGN_OR_RETURN(options.secret, base::JobSecret());
  SYNCLINE_ASSIGN_OR_RETURN(const tls::Settings tls, tls::SettingsFromEnvironment());
  options.is_encrypted = tls.mode != tls::Mode::kOff;
  if (options.is_encrypted && options.secret.empty()) {
    return ArgumentError(
        "SYNCLINE_TLS is on, and processes that meet by multicast need a secret to encrypt what "
        "they "
        "say, whatever they prove later: SYNCLINE_SECRET_FILE must name a file that has it");
  }
  return DiscoverStoreByMulticast(options, deadline);
}

absl::StatusOr<OpenedStore> OpenOverMpi(const InitMethod& method, const Deadline& deadline) {
  const MpiMeeting meeting = {/*comm=*/std::nullopt, method.rank, method.size};
  absl::StatusOr<OpenedStore> opened = OpenMpiStore(meeting, method.store.timeout, deadline);
  if (opened.ok() || method.advice.empty()) return opened;
  return Annotate(opened.status(), method.advice);
}

absl::StatusOr<OpenedStore> Open(const InitMethod& method, const Deadline& deadline) {
  if (method.scheme == kMulticastScheme) return OpenByMulticast(method, deadline);
  if (method.scheme == kMpiScheme) return OpenOverMpi(method, deadline);
  if (!method.torchrun_job.empty()) {
    const std::string job = absl::StrCat(method.torchrun_job, "/", method.group_name);
    return OpenTorchrunStore(method.store, job, deadline);
  }
  if (method.scheme == "tcp" && (method.rank < 0 || method.any_rank_serves)) {
    return ServeOrConnect(method.store, method.any_rank_serves, deadline);
  }
  if (method.scheme == "tcp" && method.rank == 0 && method.store.role == Role::kServer) {
    return ServeOrJoinAutomaticHost(method.store);
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make(method.scheme, method.store));
  return OpenedStore{std::move(store), method.store.host, Role::kClient};
}

}  // namespace

absl::StatusOr<OpenedStore> OpenStore(const InitMethod& method, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(OpenedStore opened, Open(method, deadline));
  if (!method.prefix.empty()) {
    opened.store = std::make_shared<PrefixStore>(method.prefix, std::move(opened.store));
  }
  return opened;
}

}  // namespace syncline::join
