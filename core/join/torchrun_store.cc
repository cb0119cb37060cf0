#include "core/join/torchrun_store.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/env.h"
#include "core/base/errno_payload.h"
#include "core/base/listening.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/tls/context.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr int kLastPort = 65535;
// Between two rounds through the ports, as rank 0 may come later than the others.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLastPause = absl::Milliseconds(500);
// For each attempt to connect to a listener, and for its answer.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
// The time that a client of a tcp store gives each address of a name, except the last.
constexpr absl::Duration kAddressTimeout = absl::Seconds(5);
// A store on this host answers in milliseconds.
constexpr absl::Duration kLocalTimeout = absl::Milliseconds(500);
// A listener that was passed by is looked at again after this time: sooner if it has not answered,
// as it may be busy.
constexpr absl::Duration kPassedByFor = absl::Seconds(10);
constexpr absl::Duration kSilentFor = absl::Seconds(1);
constexpr absl::Duration kWarnAfter = absl::Seconds(10);

using Addresses = std::vector<base::SocketAddress>;

std::string Ports(const StoreConfig& config) {
  const std::vector<int> ports = TorchrunPorts(config.port);
  return absl::StrCat("ports ", std::min(ports.front(), ports.back()), " to ",
                      std::max(ports.front(), ports.back()), " of ", config.host,
                      ", where ranks meet as torchrun's own store has MASTER_PORT");
}

// The outcome of one look at a port.
struct Look {
  std::shared_ptr<Store> store;  // The job's, if it is there.
  // Otherwise why not. OK if nobody listens.
  absl::Status listener;
  bool has_answered = false;
};

// The index of the first address at which somebody listens, or -1. Those before may be some that
// no packet reaches.
int FindListener(const Addresses& addresses, int port, const Deadline& deadline) {
  for (size_t i = 0; i < addresses.size(); ++i) {
    base::SocketAddress address = addresses[i];
    base::SetPort(address, port);
    const Deadline one(std::min(deadline.Remaining(), kConnectTimeout));
    if (base::Connect(address, SOCK_STREAM, one).ok()) return static_cast<int>(i);
  }
  return -1;
}

Look LookAt(StoreConfig config, int port, const Addresses& addresses, const std::string& job,
            absl::Duration timeout, const Deadline& deadline) {
  Look look;
  const int found = FindListener(addresses, port, deadline);
  if (found < 0) return look;
  config.port = port;
  config.role = StoreConfig::Role::kClient;
  // The client tries the addresses before that one again.
  const Deadline connecting(std::min(deadline.Remaining(), timeout + found * kAddressTimeout));
  config.connect_timeout = connecting.timeout();
  auto store = StoreRegistry::Make("tcp", config);
  if (!store.ok()) {
    look.listener = store.status();
    look.has_answered = !connecting.Expired();  // What it says earlier is final.
    return look;
  }
  const Deadline waiting(std::min(deadline.Remaining(), timeout));
  const absl::Status is_ours = (*store)->Wait({job}, waiting.timeout());
  if (is_ours.ok()) {
    look.store = *std::move(store);
    return look;
  }
  look.listener = IsInterrupted(is_ours) ? is_ours : NetworkError("the store of another job");
  look.has_answered = true;
  return look;
}

// Whether all addresses of this host are free at the port. A store listens at those that are, so
// another process could have the one that a rank tries first.
bool IsFree(const Addresses& addresses, int port) {
  return std::all_of(addresses.begin(), addresses.end(), [port](base::SocketAddress address) {
    base::SetPort(address, port);
    const auto listening = base::ListenOn(address, /*takes_ipv4=*/false);
    return listening.ok() || base::ErrnoOf(listening.status()) != EADDRINUSE;
  });
}

absl::StatusOr<OpenedStore> Serve(const StoreConfig& config, const std::string& job,
                                  const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const Addresses addresses,
                            base::Resolve(config.host, {/*port=*/0}, deadline));
  for (const int port : TorchrunPorts(config.port)) {
    if (IsFree(addresses, port)) {
      StoreConfig at_port = config;
      at_port.port = port;
      absl::StatusOr<std::shared_ptr<Store>> store = StoreRegistry::Make("tcp", at_port);
      if (store.ok()) {
        SYNCLINE_RETURN_IF_ERROR((*store)->Set(job, ""));
        return OpenedStore{*std::move(store), config.host, StoreConfig::Role::kServer};
      }
      if (base::ErrnoOf(store.status()) != EADDRINUSE) return store.status();
    }
    // The other ranks would find that one.
    const Look look = LookAt(config, port, addresses, job, kLocalTimeout, deadline);
    if (IsInterrupted(look.listener)) return look.listener;
    if (look.store != nullptr) {
      return NetworkError(absl::StrCat(
          "a store of this job is served at port ", port, " of ", config.host,
          " already: end the process of an earlier start that serves it, close the world of this "
          "one that does, or give torchrun another --master-port or --rdzv-endpoint"));
    }
  }
  return NetworkError(absl::StrCat("other processes have all ", Ports(config),
                                   ": give torchrun another --master-port or --rdzv-endpoint"));
}

// A search of the ports for the store of the job.
class Search {
 public:
  Search(const StoreConfig& config, const std::string& job, const Deadline& deadline)
      : config_(config), job_(job), deadline_(deadline) {}

  absl::StatusOr<OpenedStore> Run();

 private:
  struct PassedBy {
    absl::Status why;
    Deadline until;
  };

  // One round through the ports. The store, if it is there.
  absl::StatusOr<std::shared_ptr<Store>> TryPorts();
  // Says of each port that somebody listens at why it is not the job's store.
  std::string Describe() const;

  const StoreConfig& config_;
  const std::string& job_;
  const Deadline& deadline_;
  std::map<int, PassedBy> passed_by_;  // By port.
};

std::string Search::Describe() const {
  if (passed_by_.empty()) return "nobody listens there";
  return absl::StrJoin(passed_by_, "; ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "port ", entry.first, ": ", entry.second.why.message());
  });
}

absl::StatusOr<std::shared_ptr<Store>> Search::TryPorts() {
  SYNCLINE_ASSIGN_OR_RETURN(const Addresses addresses,
                            base::Resolve(config_.host, {/*port=*/0}, deadline_));
  for (const int port : TorchrunPorts(config_.port)) {
    const auto known = passed_by_.find(port);
    if (known != passed_by_.end() && !known->second.until.Expired()) continue;
    Look look = LookAt(config_, port, addresses, job_, kConnectTimeout, deadline_);
    if (look.store != nullptr) return std::move(look.store);
    SYNCLINE_RETURN_IF_ERROR(Interruption());
    passed_by_.erase(port);
    if (look.listener.ok()) continue;
    const Deadline until(look.has_answered ? kPassedByFor : kSilentFor);
    passed_by_.emplace(port, PassedBy{std::move(look.listener), until});
  }
  return std::shared_ptr<Store>();
}

absl::StatusOr<OpenedStore> Search::Run() {
  const Deadline silent(kWarnAfter);
  bool has_warned = false;
  absl::Duration pause = kFirstPause;
  while (true) {
    absl::StatusOr<std::shared_ptr<Store>> store = TryPorts();
    if (store.ok() && *store != nullptr) return OpenedStore{*std::move(store), config_.host};
    if (IsInterrupted(store.status())) return store.status();
    const std::string why = store.ok() ? Describe() : std::string(store.status().message());
    if (deadline_.Expired()) {
      return NetworkError(absl::StrCat("no store of this job after ",
                                       absl::FormatDuration(deadline_.timeout()), " at ",
                                       Ports(config_), " (", why, "); see whether rank 0 runs"));
    }
    if (!has_warned && silent.Expired()) {
      has_warned = true;
      Log(LogLevel::kWarning, absl::StrCat("still looking for the store of this job at ",
                                           Ports(config_), " (", why, ")"));
    }
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(pause, deadline_.Remaining())));
    pause = std::min(2 * pause, kLastPause);
  }
}

}  // namespace

std::vector<int> TorchrunPorts(int master_port) {
  const int step = master_port + kTorchrunPorts <= kLastPort ? 1 : -1;
  std::vector<int> ports;
  for (int i = 1; i <= kTorchrunPorts; ++i) ports.push_back(master_port + i * step);
  return ports;
}

absl::StatusOr<OpenedStore> OpenTorchrunStore(const StoreConfig& config, const std::string& job,
                                              const Deadline& deadline) {
  // A mistake in this process's own settings is none of the listeners'.
  if (config.secret.empty()) SYNCLINE_RETURN_IF_ERROR(base::JobSecret().status());
  SYNCLINE_RETURN_IF_ERROR(tls::Context::FromEnvironment(config.secret).status());
  if (config.role == StoreConfig::Role::kServer) return Serve(config, job, deadline);
  return Search(config, job, deadline).Run();
}

}  // namespace syncline::join
