#include "launch/node.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/hmac.h"
#include "core/base/host.h"
#include "core/base/listening.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/join/host_address.h"
#include "launch/job_files.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Backend = RendezvousOptions::Backend;

constexpr absl::string_view kSecretVariable = "SYNCLINE_SECRET_FILE";
constexpr int kIdBytes = 8;
constexpr absl::Duration kSearchInterval = absl::Milliseconds(100);

bool IsLocalhost(absl::string_view host) {
  return host.empty() || host == "localhost" || join::IsLoopbackAddress(host);
}

// The address at which the other nodes reach this one.
absl::StatusOr<std::string> OwnAddress(const LaunchOptions& options) {
  if (options.nodes.max == 1) return std::string("127.0.0.1");
  for (const std::string& given :
       {options.local_addr, base::GetEnv(join::kHostAddressVariable).value_or("")}) {
    if (!given.empty()) return base::FirstAddress(given);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto chosen, join::ChosenInterfaceAddresses());
  for (const std::string& address : chosen) {
    if (!join::IsLoopbackAddress(address)) return address;
  }
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (rendezvous.backend != Backend::kFile) {
    SYNCLINE_ASSIGN_OR_RETURN(std::string address, base::AddressTowards(rendezvous.host));
    if (!join::IsLoopbackAddress(address) || IsLocalhost(rendezvous.host)) return address;
    // The endpoint is this host: its name, unless that means a loopback address.
    SYNCLINE_ASSIGN_OR_RETURN(address, base::FirstAddress(rendezvous.host));
    if (!join::IsLoopbackAddress(address)) return address;
  }
  for (const auto& address :
       {base::AddressTowards(base::ThisPeer().host), base::AddressOfDefaultInterface()}) {
    if (address.ok() && !join::IsLoopbackAddress(*address)) return address;
  }
  SYNCLINE_RETURN_IF_ERROR(Interruption());
  return std::string("127.0.0.1");  // A host without a network.
}

absl::StatusOr<std::string> AwaitOwnAddress(const LaunchOptions& options,
                                            const std::function<bool()>& cancelled) {
  const Deadline deadline(options.rendezvous.read_timeout);
  for (bool is_first_try = true;; is_first_try = false) {
    absl::StatusOr<std::string> address = OwnAddress(options);
    if (address.ok() || KindOf(address.status()) == ErrorKind::kArgument) return address;
    if (deadline.Expired() || cancelled()) {
      return Annotate(address.status(), "this node finds no way to the rendezvous");
    }
    // Interfaces and name servers may come up later than the launcher.
    if (is_first_try && !IsInterrupted(address.status())) {
      LogInBackground(
          LogLevel::kWarning,
          absl::StrCat("this node waits up to ", absl::FormatDuration(deadline.timeout()),
                       " (read_timeout of --rdzv-conf) for a way to the rendezvous: ",
                       address.status().message()));
    }
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(kSearchInterval));
  }
}

}  // namespace

absl::StatusOr<std::string> GivenSecret(const LaunchOptions& options) {
  if (options.nodes.max == 1 || !base::GetEnv(kSecretVariable).has_value()) return std::string();
  return base::JobSecret();
}

std::string SecretOfId(const std::string& id) {
  return absl::BytesToHexString(base::HmacSha256("syncline job", id));
}

absl::StatusOr<int> FindFreePort() {
  constexpr absl::string_view kWhat = "no free port was found for MASTER_PORT";
  constexpr absl::string_view kRemedy = "Give one with --master-port";
  base::SocketAddress address;
  address.storage.ss_family = AF_INET;
  address.length = sizeof(sockaddr_in);
  const absl::StatusOr<base::UniqueFd> fd = base::ListenOn(address);
  if (!fd.ok()) return Annotate(fd.status(), absl::StrCat(kWhat, " (", kRemedy, ")"));
  return base::PortOf(address);
}

absl::StatusOr<Node> StartNode(const LaunchOptions& options, const std::string& secret,
                               const Clock& clock, const std::function<bool()>& cancelled) {
  const bool is_alone = options.nodes.max == 1;
  NodeIdentity identity;
  SYNCLINE_ASSIGN_OR_RETURN(identity.id, RandomHex(kIdBytes));
  SYNCLINE_ASSIGN_OR_RETURN(identity.address, AwaitOwnAddress(options, cancelled));
  const Peer self = base::ThisPeer();
  identity.host = self.host;
  identity.pid = self.pid;
  identity.role = options.role;
  identity.workers = options.workers;
  if (options.rendezvous.backend == Backend::kStatic) identity.wanted_rank = options.node_rank;

  Node node;
  JobStoreOptions store;
  store.host = identity.address;
  store.secret = secret;
  if (is_alone && options.rendezvous.backend != Backend::kEtcd) {
    store.port = options.rendezvous.port;
  }
  SYNCLINE_ASSIGN_OR_RETURN(node.store, StartJobStore(store));
  identity.store = node.store->address();
  if (is_alone) {
    identity.wanted_rank = -1;
    node.participant = MakeSoloParticipant(options, std::move(identity), clock);
  } else {
    node.participant = MakeNetworkParticipant(options, std::move(identity), secret, clock);
  }
  return node;
}

}  // namespace syncline::launch
