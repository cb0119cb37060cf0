#include "launch/rendezvous/meeting_place.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/deadline.h"
#include "core/base/host.h"
#include "core/base/interrupt.h"
#include "core/base/sockets.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/join/host_address.h"
#include "core/join/serving_turn.h"
#include "core/store/prefix_store.h"
#include "launch/rendezvous/position.h"
#include "store/listen_address.h"
#include "store/tcp_server.h"
#include "store/tcp_store.h"

namespace syncline {
namespace {

using Backend = RendezvousOptions::Backend;
using Hosting = RendezvousOptions::Hosting;

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kTryFor = absl::Seconds(1);
constexpr absl::Duration kTryElsewhereFor = absl::Seconds(3);  // With TLS and a login.
constexpr size_t kConnectThreads = 16;

std::shared_ptr<Store> OfJob(const RendezvousOptions& rendezvous, std::shared_ptr<Store> store) {
  return std::make_shared<PrefixStore>(absl::StrCat("rdzv/", rendezvous.id), std::move(store));
}

// Where to listen for connections to `host`. A name of this host that stands for a loopback address
// here (127.0.1.1, as many systems have it) stands for another one elsewhere.
absl::StatusOr<std::string> ListenAddress(const std::string& host) {
  SYNCLINE_ASSIGN_OR_RETURN(std::string address, FirstAddress(host));
  const bool is_meant = host == "localhost" || IsLoopbackAddress(host);
  if (IsLoopbackAddress(address) && !is_meant) return std::string("0.0.0.0");
  return address;
}

absl::StatusOr<std::shared_ptr<Store>> ConnectToStore(const MeetingPlaceOptions& options,
                                                      const std::string& host, int port,
                                                      absl::Duration patience) {
  TCPStore::Options client;
  client.host = host;
  client.port = port;
  client.timeout = options.call_timeout;
  client.connect_timeout = patience;
  client.secret = options.secret;
  return TCPStore::Create(client);
}

absl::StatusOr<std::unique_ptr<TCPServer>> Serve(const MeetingPlaceOptions& options) {
  TCPServer::Options server;
  SYNCLINE_ASSIGN_OR_RETURN(server.host, ListenAddress(options.rendezvous.host));
  server.port = options.rendezvous.port;
  server.secret = options.secret;
  return TCPServer::Start(server);
}

// Of c10d and static: to host and to connect in turns, until one of them works.
absl::StatusOr<MeetingPlace> HostOrConnect(const MeetingPlaceOptions& options,
                                           const Deadline& deadline,
                                           const std::function<bool()>& cancelled) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  MeetingPlace place;
  place.address = EndpointAddress(rendezvous);
  for (bool is_first_try = true;; is_first_try = false) {
    absl::Status hosting;
    if (rendezvous.hosting != Hosting::kNever) {
      const ServingTurn turn(rendezvous.host, rendezvous.port);
      absl::StatusOr<std::unique_ptr<TCPServer>> server = NetworkError("another node tries to");
      // Later, a process that never serves may hold the turn.
      if (turn.is_mine() || !is_first_try) server = Serve(options);
      hosting = server.status();
      if (server.ok()) place.server = *std::move(server);
      if (!hosting.ok() && rendezvous.hosting == Hosting::kAlways) {
        if (deadline.Expired() || cancelled()) {
          return Annotate(hosting, "this node is to host the rendezvous");
        }
        absl::SleepFor(kPause);  // Its predecessor may still be ending.
        continue;
      }
    }
    const Deadline attempt(std::min(kTryFor, deadline.Remaining()));
    auto store = ConnectToStore(options, rendezvous.host, rendezvous.port, attempt.timeout());
    if (store.ok()) {
      place.store = OfJob(rendezvous, *std::move(store));
      return place;
    }
    // Who answers, and not with a welcome, will not change.
    if (!attempt.Expired() || deadline.Expired() || cancelled()) {
      return Annotate(
          store.status(),
          absl::StrCat("the rendezvous at ", place.address, " cannot be reached",
                       rendezvous.hosting == Hosting::kNever
                           ? ""
                           : absl::StrCat(", nor hosted by this node (", hosting.message(), ")")));
    }
    place.server.reset();
  }
}

StoreConfig ConfigOf(const MeetingPlaceOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  StoreConfig config;
  config.path = rendezvous.path;
  config.timeout = options.call_timeout;
  config.etcd.endpoints = EndpointAddress(rendezvous);
  config.etcd.ca_cert = rendezvous.etcd.ca_cert;
  config.etcd.cert = rendezvous.etcd.cert;
  config.etcd.key = rendezvous.etcd.key;
  config.etcd.user = rendezvous.etcd.user;
  config.etcd.password = rendezvous.etcd.password;
  config.etcd.prefix = rendezvous.etcd.prefix;
  // Of what a job that was killed leaves behind. Nodes wait as long for a store that is away.
  config.etcd.ttl = std::max(rendezvous.join_timeout, rendezvous.read_timeout);
  return config;
}

absl::StatusOr<MeetingPlace> OpenMeetingPlace(const MeetingPlaceOptions& options,
                                              const Deadline& deadline,
                                              const std::function<bool()>& cancelled) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (IsHostedByNodes(rendezvous)) return HostOrConnect(options, deadline, cancelled);
  const bool is_file = rendezvous.backend == Backend::kFile;
  StoreConfig config = ConfigOf(options);
  for (;;) {
    const Deadline attempt(std::min(kTryElsewhereFor, deadline.Remaining()));
    config.connect_timeout = attempt.timeout();
    auto store = StoreRegistry::Make(is_file ? "file" : "etcd", config);
    if (store.ok()) {
      MeetingPlace place;
      place.address = is_file ? rendezvous.path : EndpointAddress(rendezvous);
      place.store = OfJob(rendezvous, *std::move(store));
      return place;
    }
    if (!attempt.Expired() || deadline.Expired() || cancelled()) return store.status();
  }
}

// Whether the error says that nobody listens at an address of a host that lives.
bool IsRefusal(const absl::Status& status) {
  return absl::StrContains(status.message(), std::strerror(ECONNREFUSED));
}

absl::StatusOr<SocketAddress> SocketAddressOf(const std::string& host, int port) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string number, FirstAddress(host));
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(address.get());
  auto* v6 = reinterpret_cast<sockaddr_in6*>(address.get());
  if (inet_pton(AF_INET, number.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof(*v4);
    return address;
  }
  if (inet_pton(AF_INET6, number.c_str(), &v6->sin6_addr) != 1) {
    return NetworkError(absl::StrCat("'", number, "' is no address of a host"));
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof(*v6);
  return address;
}

// Calls work(0), ..., work(count - 1) on several threads. An interrupt of the thread that waits for
// all of them ends the calls of the others too.
class WorkQueue {
 public:
  WorkQueue(size_t count, const std::function<void(size_t)>& work)
      : count_(count), work_(work), left_(count) {}

  // Takes calls until none is left.
  void Help() {
    const auto check = [this] {
      return interrupted_ ? InterruptedError("the launcher ends") : absl::OkStatus();
    };
    const InterruptScope scope(check);
    Take();
  }

  // The same, then waits for the calls of those who help.
  void Finish() {
    Take();
    while (!AwaitOthers()) {
      if (!CheckInterrupt().ok()) interrupted_ = true;
    }
  }

 private:
  void Take() {
    for (size_t i = next_++; i < count_; i = next_++) {
      work_(i);
      absl::MutexLock lock(&mutex_);
      --left_;
    }
  }

  bool AwaitOthers() {
    absl::MutexLock lock(&mutex_);
    const auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_done), kInterruptInterval);
  }

  const size_t count_;
  const std::function<void(size_t)>& work_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> interrupted_{false};
  absl::Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
};

class LauncherNetwork final : public RendezvousNetwork {
 public:
  explicit LauncherNetwork(MeetingPlaceOptions options) : options_(std::move(options)) {}

  std::string endpoint() const override {
    const bool is_file = options_.rendezvous.backend == Backend::kFile;
    return is_file ? options_.rendezvous.path : EndpointAddress(options_.rendezvous);
  }
  bool is_hosted_by_nodes() const override { return IsHostedByNodes(options_.rendezvous); }

  absl::StatusOr<MeetingPlace> Open(absl::Duration timeout,
                                    const std::function<bool()>& cancelled) override {
    return OpenMeetingPlace(options_, Deadline(timeout), cancelled);
  }

  std::shared_ptr<void> ServeEndpoint() override {
    const RendezvousOptions& rendezvous = options_.rendezvous;
    if (!is_hosted_by_nodes() || rendezvous.hosting == Hosting::kNever) return nullptr;
    if (is_elsewhere_) return nullptr;
    const ServingTurn turn(rendezvous.host, rendezvous.port);
    if (!turn.is_mine()) return nullptr;
    auto server = Serve(options_);
    if (server.ok()) return *std::move(server);
    is_elsewhere_ = absl::StrContains(server.status().message(), std::strerror(EADDRNOTAVAIL));
    return nullptr;
  }

  Reached Connect(const std::string& address, absl::Duration timeout,
                  absl::Duration call_timeout) override {
    Reached reached;
    int port = 0;
    const std::string host = HostOf(address);
    if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
      reached.status = NetworkError(absl::StrCat("'", address, "' is no address of a store"));
      return reached;
    }
    const Deadline deadline(timeout);
    // The store's client waits for a server that may yet start. This one has started before.
    const auto socket_address = SocketAddressOf(host, port);
    reached.status = socket_address.status();
    if (!reached.status.ok()) return reached;
    reached.status = syncline::Connect(*socket_address, SOCK_STREAM, deadline).status();
    reached.is_gone = !reached.status.ok() && IsRefusal(reached.status);
    if (!reached.status.ok()) return reached;
    MeetingPlaceOptions options = options_;
    options.call_timeout = std::min(options.call_timeout, call_timeout);
    auto store = ConnectToStore(options, host, port, deadline.Remaining());
    reached.status = store.status();
    if (store.ok()) reached.store = OfJob(options_.rendezvous, *std::move(store));
    return reached;
  }

  void ForAll(size_t count, const std::function<void(size_t)>& work) override {
    WorkQueue queue(count, work);
    std::vector<std::thread> helpers;
    while (helpers.size() + 1 < std::min(count, kConnectThreads)) {
      auto helper = StartThread("the rendezvous", [&queue] { queue.Help(); });
      if (!helper.ok()) break;  // Fewer at once, then.
      helpers.push_back(*std::move(helper));
    }
    queue.Finish();
    for (std::thread& helper : helpers) helper.join();
  }

 private:
  const MeetingPlaceOptions options_;
  bool is_elsewhere_ = false;  // The endpoint, as is known: its address is none of this host.
};

}  // namespace

std::string EndpointAddress(const RendezvousOptions& rendezvous) {
  return JoinHostPort(rendezvous.host, rendezvous.port);
}

bool IsHostedByNodes(const RendezvousOptions& rendezvous) {
  return rendezvous.backend == Backend::kC10d || rendezvous.backend == Backend::kStatic;
}

std::unique_ptr<RendezvousNetwork> MakeRendezvousNetwork(MeetingPlaceOptions options) {
  return std::make_unique<LauncherNetwork>(std::move(options));
}

absl::StatusOr<std::shared_ptr<Store>> FindRunningJob(const MeetingPlaceOptions& options,
                                                      absl::Duration timeout) {
  MeetingPlaceOptions guest = options;
  guest.rendezvous.hosting = Hosting::kNever;
  SYNCLINE_ASSIGN_OR_RETURN(MeetingPlace place,
                            OpenMeetingPlace(guest, Deadline(timeout), [] { return false; }));
  if (!IsHostedByNodes(options.rendezvous)) return place.store;
  SYNCLINE_ASSIGN_OR_RETURN(const auto position, ReadPosition(*place.store));
  if (!position.has_value() || position->state != Position::State::kHere) return place.store;
  return InstanceStore(std::move(place.store), position->instance);
}

}  // namespace syncline
