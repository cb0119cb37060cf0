#include "launch/rendezvous/store_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/errno_payload.h"
#include "core/base/host.h"
#include "core/base/sockets.h"
#include "core/base/thread.h"
#include "core/join/host_address.h"
#include "core/join/listen_lock.h"
#include "launch/rendezvous/job_location.h"
#include "store/common/listen_address.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tcp_server.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

using Backend = RendezvousOptions::Backend;
using Hosting = RendezvousOptions::Hosting;

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kTryFor = absl::Seconds(1);
constexpr absl::Duration kTryElsewhereFor = absl::Seconds(3);  // etcd: with TLS and a login.
constexpr size_t kConnectThreads = 16;

std::shared_ptr<Store> OfJob(const RendezvousOptions& rendezvous, std::shared_ptr<Store> store) {
  return std::make_shared<PrefixStore>(absl::StrCat("rdzv/", rendezvous.id), std::move(store));
}

// Where to listen for connections to `host`. Many systems map their own name to a loopback address
// (127.0.1.1). Other hosts resolve that name to another address, so the server listens on all.
absl::StatusOr<std::string> ListenAddress(const std::string& host) {
  SYNCLINE_ASSIGN_OR_RETURN(std::string address, base::FirstAddress(host));
  const bool is_meant = host == "localhost" || join::IsLoopbackAddress(host);
  if (join::IsLoopbackAddress(address) && !is_meant) return std::string("0.0.0.0");
  return address;
}

absl::StatusOr<std::shared_ptr<Store>> ConnectToStore(const StoreNetworkOptions& options,
                                                      const std::string& host, int port,
                                                      absl::Duration timeout) {
  TCPStore::Options client;
  client.host = host;
  client.port = port;
  client.timeout = options.call_timeout;
  client.connect_timeout = timeout;
  client.secret = options.secret;
  return TCPStore::Create(client);
}

absl::StatusOr<std::unique_ptr<tcp_store::TCPServer>> Serve(const StoreNetworkOptions& options) {
  tcp_store::TCPServer::Options server;
  SYNCLINE_ASSIGN_OR_RETURN(server.host, ListenAddress(options.rendezvous.host));
  server.port = options.rendezvous.port;
  server.secret = options.secret;
  return tcp_store::TCPServer::Start(server);
}

// The error of `reaching` the store at `address`, and why this node does not host it: the error of
// `hosting`, if it is one.
absl::Status NoStore(const std::string& address, const absl::Status& reaching,
                     const absl::Status& hosting) {
  const absl::Status error =
      Annotate(reaching, absl::StrCat("the rendezvous at ", address, " cannot be reached"));
  // Where a server has refused this node, there is one.
  if (hosting.ok() || tcp_store::IsRefusal(reaching)) return error;
  absl::Status both(error.code(), absl::StrCat(error.message(), "; nor does this node host it: ",
                                               store::WithoutAdvice(hosting.message())));
  error.ForEachPayload(
      [&both](absl::string_view url, const absl::Cord& payload) { both.SetPayload(url, payload); });
  return both;
}

// Backends c10d and static: tries to host and to connect in turns until one of them works. Which
// node gets to host is decided by bind(2): the port of the endpoint has one owner. Nodes on other
// hosts fail to bind, because the address is not theirs.
absl::StatusOr<RendezvousStore> HostOrConnect(const StoreNetworkOptions& options,
                                              const Deadline& deadline,
                                              const std::function<bool()>& cancelled) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  RendezvousStore target;
  target.address = EndpointAddress(rendezvous);
  for (bool is_first_try = true;; is_first_try = false) {
    absl::Status hosting;
    if (rendezvous.hosting != Hosting::kNever) {
      const join::ListenLock lock(rendezvous.host, rendezvous.port);
      absl::StatusOr<std::unique_ptr<tcp_store::TCPServer>> server =
          NetworkError("another process of this host tries to");
      // The first try respects the lock, so that processes of one host do not disturb each other.
      // Later tries do not: the process that holds the lock may never serve.
      if (lock.is_held() || !is_first_try) server = Serve(options);
      hosting = server.status();
      if (server.ok()) target.server = *std::move(server);
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
      target.store = OfJob(rendezvous, *std::move(store));
      return target;
    }
    // A server that answered and refused (a wrong secret, say) will refuse again.
    if (!attempt.Expired() || deadline.Expired() || cancelled()) {
      return NoStore(target.address, store.status(), hosting);
    }
    // Serves, but cannot be reached: releases the port for another node.
    target.server.reset();
  }
}

StoreConfig ConfigOf(const StoreNetworkOptions& options) {
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
  // The lease of the job's keys: what a killed job leaves behind expires after it. It must not
  // expire while nodes still wait for a store that is away.
  config.etcd.ttl = std::max(rendezvous.join_timeout, rendezvous.read_timeout);
  return config;
}

absl::StatusOr<RendezvousStore> OpenRendezvousStore(const StoreNetworkOptions& options,
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
      RendezvousStore target;
      target.address = is_file ? rendezvous.path : EndpointAddress(rendezvous);
      target.store = OfJob(rendezvous, *std::move(store));
      return target;
    }
    if (!attempt.Expired() || deadline.Expired() || cancelled()) return store.status();
  }
}

absl::StatusOr<base::SocketAddress> SocketAddressOf(const std::string& host, int port) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string number, base::FirstAddress(host));
  base::SocketAddress address;
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

// Runs work(0), ..., work(count - 1) on several threads, which take the next index from a counter.
// An interrupt of the thread in Finish() interrupts the calls of the others too. Thread-safe.
class ParallelCalls {
 public:
  ParallelCalls(size_t count, const std::function<void(size_t)>& work)
      : count_(count), work_(work), left_(count) {}

  // For the other threads: runs calls until none is left.
  void Help() {
    const auto check = [this] {
      return interrupted_ ? InterruptedError("the launcher ends") : absl::OkStatus();
    };
    const InterruptScope scope(check);
    Take();
  }

  // For the owner: the same, and then waits for the calls of the other threads.
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

class StoreNetwork final : public RendezvousNetwork {
 public:
  explicit StoreNetwork(StoreNetworkOptions options) : options_(std::move(options)) {}

  std::string endpoint() const override {
    const bool is_file = options_.rendezvous.backend == Backend::kFile;
    return is_file ? options_.rendezvous.path : EndpointAddress(options_.rendezvous);
  }
  bool is_hosted_by_nodes() const override { return IsHostedByNodes(options_.rendezvous); }

  absl::StatusOr<RendezvousStore> Open(absl::Duration timeout,
                                       const std::function<bool()>& cancelled) override {
    return OpenRendezvousStore(options_, Deadline(timeout), cancelled);
  }

  std::shared_ptr<void> ServeEndpoint() override {
    const RendezvousOptions& rendezvous = options_.rendezvous;
    if (!is_hosted_by_nodes() || rendezvous.hosting == Hosting::kNever) return nullptr;
    if (endpoint_is_remote_) return nullptr;
    // Of several processes of this host that notice a free endpoint, one tries to serve it.
    const join::ListenLock lock(rendezvous.host, rendezvous.port);
    if (!lock.is_held()) return nullptr;
    auto server = Serve(options_);
    if (server.ok()) return *std::move(server);
    endpoint_is_remote_ = base::ErrnoOf(server.status()) == EADDRNOTAVAIL;
    return nullptr;
  }

  ConnectResult Connect(const std::string& address, absl::Duration timeout,
                        absl::Duration call_timeout) override {
    ConnectResult connected;
    int port = 0;
    const std::string host = join::HostOf(address);
    if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
      connected.status = NetworkError(absl::StrCat("'", address, "' is no address of a store"));
      return connected;
    }
    const Deadline deadline(timeout);
    // The store's client retries, because its server may not have started yet. This server has
    // started before, so a refused connection is final: a plain connect finds that out at once.
    const auto socket_address = SocketAddressOf(host, port);
    connected.status = socket_address.status();
    if (!connected.status.ok()) return connected;
    connected.status = base::Connect(*socket_address, SOCK_STREAM, deadline).status();
    // The host is up and no process listens at the address.
    connected.is_refused = base::ErrnoOf(connected.status) == ECONNREFUSED;
    if (!connected.status.ok()) return connected;
    StoreNetworkOptions options = options_;
    options.call_timeout = std::min(options.call_timeout, call_timeout);
    auto store = ConnectToStore(options, host, port, deadline.Remaining());
    connected.status = store.status();
    if (store.ok()) connected.store = OfJob(options_.rendezvous, *std::move(store));
    return connected;
  }

  void ForAll(size_t count, const std::function<void(size_t)>& work) override {
    ParallelCalls queue(count, work);
    std::vector<std::thread> helpers;
    while (helpers.size() + 1 < std::min(count, kConnectThreads)) {
      auto helper = base::StartThread("the rendezvous", [&queue] { queue.Help(); });
      if (!helper.ok()) break;  // Out of threads: fewer calls at once.
      helpers.push_back(*std::move(helper));
    }
    queue.Finish();
    for (std::thread& helper : helpers) helper.join();
  }

 private:
  const StoreNetworkOptions options_;
  bool endpoint_is_remote_ = false;  // bind(2) has said that the address is not this host's.
};

}  // namespace

std::string EndpointAddress(const RendezvousOptions& rendezvous) {
  return JoinHostPort(rendezvous.host, rendezvous.port);
}

bool IsHostedByNodes(const RendezvousOptions& rendezvous) {
  return rendezvous.backend == Backend::kC10d || rendezvous.backend == Backend::kStatic;
}

std::unique_ptr<RendezvousNetwork> MakeStoreNetwork(StoreNetworkOptions options) {
  return std::make_unique<StoreNetwork>(std::move(options));
}

absl::StatusOr<std::shared_ptr<Store>> FindRunningJob(const StoreNetworkOptions& options,
                                                      absl::Duration timeout) {
  StoreNetworkOptions client = options;
  client.rendezvous.hosting = Hosting::kNever;
  SYNCLINE_ASSIGN_OR_RETURN(RendezvousStore target,
                            OpenRendezvousStore(client, Deadline(timeout), [] { return false; }));
  if (!IsHostedByNodes(options.rendezvous)) return target.store;
  SYNCLINE_ASSIGN_OR_RETURN(const auto location, ReadLocation(*target.store));
  if (!location.has_value() || location->state != JobLocation::State::kHere) return target.store;
  return InstanceStore(std::move(target.store), location->instance);
}

}  // namespace syncline::launch
