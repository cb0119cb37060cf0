#include "syncline/tcp_store.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/env.h"
#include "core/base/unique_fd.h"
#include "core/tls/context.h"
#include "store/common/errors.h"
#include "store/common/listen_address.h"
#include "store/tcp/answers.h"
#include "store/tcp/store.pb.h"
#include "store/tcp/tcp_client.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tcp_server.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using store::AnnotateStore;
using store::CheckKey;
using store::CheckPairs;
using store::DescribeKeys;
using store::JoinHostPort;
using tcp_store::CheckAnswer;
using tcp_store::ServerAddress;
using tcp_store::TakeKeys;
using tcp_store::TakeValues;
using tcp_store::TCPClient;
using tcp_store::TCPServer;

using Body = wire::ServerMessage::BodyCase;

// The servers of this process by their ports, for stores that share one. Thread-safe.
class Servers {
 public:
  static Servers& OfProcess() {
    static auto* const servers = new Servers;
    return *servers;
  }

  // The server of another store where `options` allow that, else a new one.
  absl::StatusOr<std::shared_ptr<TCPServer>> Open(const TCPStore::Options& options) {
    if (!options.multi_tenant) {
      SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<TCPServer> server, Start(options));
      absl::MutexLock lock(&mutex_);
      return Noted(std::move(server));
    }
    absl::MutexLock lock(&mutex_);  // Two threads make one server.
    if (std::shared_ptr<TCPServer> server = Find(options.port)) {
      const base::UniqueFd unneeded(options.listen_fd.value_or(-1));
      return server;
    }
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<TCPServer> server, Start(options));
    return Noted(std::move(server));
  }

 private:
  static absl::StatusOr<std::shared_ptr<TCPServer>> Start(const TCPStore::Options& options) {
    TCPServer::Options server;
    server.host = options.host;
    server.port = options.port;
    server.secret = options.secret;
    server.listen_fd = options.listen_fd;
    server.lookup_timeout = options.connect_timeout.value_or(options.timeout);
    return TCPServer::Start(server);
  }

  std::shared_ptr<TCPServer> Find(int port) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const pid_t before = std::exchange(pid_, getpid());
    if (before != pid_) by_port_.clear();  // They are those of the process that forked.
    const auto found = by_port_.find(port);
    return found == by_port_.end() ? nullptr : found->second.lock();
  }

  // Of two at one port, on two addresses, the first counts.
  std::shared_ptr<TCPServer> Noted(std::shared_ptr<TCPServer> server)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Find(server->port()) == nullptr) by_port_[server->port()] = server;
    return server;
  }

  absl::Mutex mutex_;
  pid_t pid_ ABSL_GUARDED_BY(mutex_) = getpid();
  absl::flat_hash_map<int, std::weak_ptr<TCPServer>> by_port_ ABSL_GUARDED_BY(mutex_);
};

const StoreRegistry::Registration kTCP(
    "tcp", [](const StoreConfig& config) -> absl::StatusOr<std::shared_ptr<Store>> {
      TCPStore::Options options;
      if (!config.host.empty()) options.host = config.host;
      options.port = config.port;
      options.role = config.role;
      options.timeout = config.timeout;
      options.connect_timeout = config.connect_timeout;
      options.secret = config.secret;
      if (options.secret.empty()) {
        SYNCLINE_ASSIGN_OR_RETURN(options.secret, base::JobSecret());
      }
      return TCPStore::Create(options);
    });

std::string Name(absl::string_view host, int port) {
  return absl::StrCat("tcp://", JoinHostPort(host, port));
}

void Fill(absl::Span<const std::string> keys, wire::Keys* out) {
  for (const std::string& key : keys) out->add_keys(key);
}

// What one call asks, of whom, and how an error is worded.
struct Question {
  const std::string store;
  absl::Span<const std::string> keys;  // That it is about.
  const absl::Duration timeout;
};

// The answer, if it is of the `expected` sort.
absl::StatusOr<wire::ServerMessage> Ask(TCPClient* client, const Question& question,
                                        wire::ClientMessage request, Body expected) {
  absl::StatusOr<wire::ServerMessage> reply =
      client->Call(std::move(request), Deadline(question.timeout));
  if (!reply.ok()) {
    absl::Status status = reply.status();
    if (!question.keys.empty()) status = Annotate(status, DescribeKeys(question.keys));
    return AnnotateStore(status, question.store);
  }
  SYNCLINE_RETURN_IF_ERROR(CheckAnswer(question.store, question.timeout, expected, *reply));
  return reply;
}

}  // namespace

TCPStore::TCPStore(const Options& options, int port, std::shared_ptr<TCPServer> server,
                   std::unique_ptr<TCPClient> client)
    : host_(options.host),
      port_(port),
      timeout_(options.timeout),
      options_(options),
      pid_(getpid()),
      server_(std::move(server)),
      client_(std::move(client)) {}

absl::StatusOr<std::shared_ptr<TCPStore>> TCPStore::Create(const Options& options) {
  const bool serves = options.role == StoreConfig::Role::kServer;
  const std::string name = Name(options.host, options.port);
  if (!serves && (options.port <= 0 || options.port > 65535)) {
    return AnnotateStore(ArgumentError(absl::StrCat("a client needs the port of its server, in ",
                                                    "[1, 65535], not ", options.port)),
                         name);
  }
  std::shared_ptr<TCPServer> server;
  if (serves) {
    absl::StatusOr<std::shared_ptr<TCPServer>> opened = Servers::OfProcess().Open(options);
    if (!opened.ok()) return AnnotateStore(opened.status(), name);
    server = *std::move(opened);
  }
  return Connect(options, std::move(server));
}

absl::StatusOr<std::shared_ptr<TCPStore>> TCPStore::Connect(const Options& options,
                                                            std::shared_ptr<TCPServer> server) {
  const int port = server != nullptr ? server->port() : options.port;
  ServerAddress address;
  address.host = server != nullptr ? server->host() : options.host;
  address.port = port;
  address.secret = options.secret;
  if (server == nullptr) address.certified_host = options.host;
  absl::StatusOr<std::shared_ptr<tls::Context>> tls = tls::Context::FromEnvironment(options.secret);
  if (!tls.ok()) return AnnotateStore(tls.status(), Name(options.host, port));
  address.tls = *std::move(tls);
  absl::StatusOr<std::unique_ptr<TCPClient>> client =
      TCPClient::Connect(address, Deadline(options.connect_timeout.value_or(options.timeout)));
  if (!client.ok()) return AnnotateStore(client.status(), Name(options.host, port));
  return std::shared_ptr<TCPStore>(
      new TCPStore(options, port, std::move(server), *std::move(client)));
}

TCPStore::~TCPStore() {
  client_.reset();
  // A server has threads, which a forked child does not have; leave it to the parent.
  if (getpid() != pid_) static_cast<void>(new std::shared_ptr<TCPServer>(std::move(server_)));
}

bool TCPStore::is_lost() const { return client_->is_lost(); }

absl::StatusOr<std::shared_ptr<Store>> TCPStore::Clone() {
  Options options = options_;
  options.port = port_;
  options.role = StoreConfig::Role::kClient;
  options.timeout = timeout();
  options.listen_fd.reset();
  options.multi_tenant = false;
  return Connect(options, server_);
}

std::string TCPStore::ToString() const { return Name(host_, port_); }

std::string TCPStore::address() const { return JoinHostPort(host_, port_); }

absl::Status TCPStore::Set(absl::string_view key, absl::string_view value) {
  const std::string keys[] = {std::string(key)};
  const std::string values[] = {std::string(value)};
  return MultiSet(keys, values);
}

absl::StatusOr<std::string> TCPStore::Get(absl::string_view key, absl::Duration timeout) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values, MultiGet(keys, timeout));
  return std::move(values[0]);
}

absl::StatusOr<int64_t> TCPStore::Add(absl::string_view key, int64_t amount) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.mutable_add()->set_key(keys[0]);
  request.mutable_add()->set_amount(amount);
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kSum));
  return reply.sum();
}

absl::StatusOr<Store::CompareSetResult> TCPStore::CompareSet(absl::string_view key,
                                                             absl::string_view expected,
                                                             absl::string_view desired) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.mutable_compare_set()->set_key(keys[0]);
  request.mutable_compare_set()->set_expected(std::string(expected));
  request.mutable_compare_set()->set_desired(std::string(desired));
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kCompared));
  CompareSetResult result;
  result.swapped = reply.compared().swapped();
  result.value = std::move(*reply.mutable_compared()->mutable_value());
  return result;
}

absl::Status TCPStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  wire::ClientMessage request;
  Fill(keys, request.mutable_wait());
  return Ask(client_.get(), {ToString(), keys, timeout}, std::move(request), Body::kDone).status();
}

absl::StatusOr<bool> TCPStore::Check(absl::Span<const std::string> keys) {
  wire::ClientMessage request;
  Fill(keys, request.mutable_check());
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kYes));
  return reply.yes();
}

absl::StatusOr<bool> TCPStore::Delete(absl::string_view key) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.set_remove(keys[0]);
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kYes));
  return reply.yes();
}

absl::StatusOr<std::vector<std::string>> TCPStore::Keys(absl::string_view prefix) {
  wire::ClientMessage request;
  request.set_list(std::string(prefix));
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), {}, timeout()}, std::move(request), Body::kValues));
  return TakeKeys(ToString(), prefix, reply);
}

absl::Status TCPStore::Append(absl::string_view key, absl::string_view value) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.mutable_append()->add_keys(keys[0]);
  request.mutable_append()->add_values(std::string(value));
  return Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kDone)
      .status();
}

absl::Status TCPStore::SetOnDisconnect(absl::string_view key, absl::string_view value) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.mutable_set_on_disconnect()->add_keys(keys[0]);
  request.mutable_set_on_disconnect()->add_values(std::string(value));
  return Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kDone)
      .status();
}

absl::Status TCPStore::QueuePush(absl::string_view key, absl::string_view value) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.mutable_queue_push()->add_keys(keys[0]);
  request.mutable_queue_push()->add_values(std::string(value));
  return Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kDone)
      .status();
}

absl::StatusOr<std::string> TCPStore::QueuePop(absl::string_view key, absl::Duration timeout) {
  const std::string keys[] = {std::string(key)};
  wire::ClientMessage request;
  request.set_queue_pop(keys[0]);
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout}, std::move(request), Body::kValues));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values, TakeValues(ToString(), 1, reply));
  return std::move(values[0]);
}

absl::StatusOr<std::optional<std::string>> TCPStore::QueueTryPop(absl::string_view key) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  wire::ClientMessage request;
  request.set_queue_try_pop(keys[0]);
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kValues));
  if (reply.values().values_size() == 0) return std::optional<std::string>();
  return std::optional<std::string>(std::move(*reply.mutable_values()->mutable_values(0)));
}

absl::StatusOr<int64_t> TCPStore::QueueLength(absl::string_view key) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  wire::ClientMessage request;
  request.set_queue_length(keys[0]);
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kSum));
  return reply.sum();
}

absl::StatusOr<std::vector<std::string>> TCPStore::MultiGet(absl::Span<const std::string> keys,
                                                            absl::Duration timeout) {
  wire::ClientMessage request;
  Fill(keys, request.mutable_get());
  SYNCLINE_ASSIGN_OR_RETURN(
      wire::ServerMessage reply,
      Ask(client_.get(), {ToString(), keys, timeout}, std::move(request), Body::kValues));
  return TakeValues(ToString(), keys.size(), reply);
}

absl::Status TCPStore::MultiSet(absl::Span<const std::string> keys,
                                absl::Span<const std::string> values) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckPairs(keys, values), ToString()));
  wire::ClientMessage request;
  wire::Pairs* pairs = request.mutable_set();
  for (const std::string& key : keys) pairs->add_keys(key);
  for (const std::string& value : values) pairs->add_values(value);
  return Ask(client_.get(), {ToString(), keys, timeout()}, std::move(request), Body::kDone)
      .status();
}

}  // namespace syncline
