#include "core/join/torchrun_store.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/errno_payload.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr int kLastPort = 65535;
// Between two rounds through the ports, as rank 0 may come later than the others.
constexpr absl::Duration kPause = absl::Milliseconds(20);

std::string Ports(const StoreConfig& config) {
  const std::vector<int> ports = TorchrunPorts(config.port);
  return absl::StrCat("ports ", std::min(ports.front(), ports.back()), " to ",
                      std::max(ports.front(), ports.back()), " of ", config.host,
                      ", where ranks meet as torchrun's own store has MASTER_PORT");
}

absl::StatusOr<OpenedStore> Serve(StoreConfig config, const std::string& job) {
  absl::Status taken;
  for (const int port : TorchrunPorts(config.port)) {
    StoreConfig at_port = config;
    at_port.port = port;
    absl::StatusOr<std::shared_ptr<Store>> store = StoreRegistry::Make("tcp", at_port);
    if (store.ok()) {
      SYNCLINE_RETURN_IF_ERROR((*store)->Set(job, ""));
      return OpenedStore{*std::move(store), config.host, StoreConfig::Role::kServer};
    }
    if (base::ErrnoOf(store.status()) != EADDRINUSE) return store.status();
    taken = store.status();
  }
  return Annotate(taken, absl::StrCat("others have all ", Ports(config)));
}

// Whether anybody listens at the port. A client of the store would wait for a server to come.
absl::Status FindListener(const StoreConfig& config, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<base::SocketAddress> addresses,
                            base::Resolve(config.host, {config.port}, deadline));
  absl::Status error;
  for (const base::SocketAddress& address : addresses) {
    error = base::Connect(address, SOCK_STREAM, deadline).status();
    if (error.ok()) return error;
  }
  return error;
}

// The store at `config.port`, if it is that of the job.
absl::StatusOr<std::shared_ptr<Store>> TryPort(StoreConfig config, const std::string& job,
                                               const Deadline& deadline) {
  const absl::Duration timeout = std::min(deadline.Remaining(), kStoreProbeTimeout);
  SYNCLINE_RETURN_IF_ERROR(FindListener(config, Deadline(timeout)));
  config.connect_timeout = timeout;
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
  SYNCLINE_RETURN_IF_ERROR(store->Wait({job}, std::min(deadline.Remaining(), timeout)));
  return store;
}

absl::StatusOr<OpenedStore> Find(StoreConfig config, const std::string& job,
                                 const Deadline& deadline) {
  const int master_port = config.port;
  // What is wrong with a server that was found says more than that nobody listens at a port.
  absl::Status cause;
  const auto note = [&cause](const absl::Status& status) {
    if (cause.ok() || base::ErrnoOf(status) != ECONNREFUSED) cause = status;
  };
  while (true) {
    for (const int port : TorchrunPorts(master_port)) {
      config.port = port;
      absl::StatusOr<std::shared_ptr<Store>> store = TryPort(config, job, deadline);
      if (store.ok()) return OpenedStore{*std::move(store), config.host};
      if (IsInterrupted(store.status())) return store.status();
      if (deadline.Expired()) {
        config.port = master_port;
        return NetworkError(absl::StrCat(
            "no store of this job after ", absl::FormatDuration(deadline.timeout()), " at ",
            Ports(config), " (", cause.message(), "); see whether rank 0 is running"));
      }
      note(store.status());
    }
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(kPause, deadline.Remaining())));
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
  if (config.role == StoreConfig::Role::kServer) return Serve(config, job);
  return Find(config, job, deadline);
}

}  // namespace syncline::join
